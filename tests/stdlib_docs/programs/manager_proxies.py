"""What proxies are: they stand for what the manager holds, print so, and may be nested."""

from multiprocessing import Manager

if __name__ == "__main__":
    with Manager() as manager:
        squares = manager.list([i * i for i in range(7)])
        print(squares, str(squares))
        print(repr(squares).startswith("<ListProxy object, typeid 'list' at 0x"))
        print(
            squares[4], squares[2:5], squares == [0, 1, 4], squares[:] == [0, 1, 4, 9, 16, 25, 36]
        )

        outer, inner = manager.list(), manager.list()
        outer.append(inner)
        print(len(outer), len(inner), len(outer[0]))
        inner.append("hello")
        print(len(outer[0]), outer[0][0], str(outer[0]))

        rows = manager.list([manager.dict() for _ in range(2)])
        first, second = rows[0], rows[1]
        first["a"], first["b"] = 1, 2
        second["c"] = 3
        second["z"] = 26
        print(rows[0], rows[1], sorted(rows[1].values()))

        holder = manager.list()
        holder.append({})
        plain = holder[0]
        plain["x"] = 1
        print(holder)
        holder[0] = plain
        print(holder)

        space = manager.Namespace()
        space.x, space.y = 12, "words"
        space._z = 3.5  # an attribute of the proxy
        print(space)
        print(space.x, hasattr(space, "gone"))
        print(sorted(manager.dict(a=1, b=2).items()), manager.dict({"k": [1]}).copy())
        try:
            squares[99]
        except IndexError as error:
            print("IndexError:", error)
        try:
            manager.dict()["nothing"]
        except KeyError as error:
            print("KeyError:", error)
        squares += [1, 2]
        squares.extend([3])
        squares.sort(reverse=True)
        print(squares, type(squares).__name__, squares.index(3), squares.count(1))
