"""CPace, held against the vectors of its draft (version 21, appendices B.1 and B.1.10)."""

import pytest

from fiber._wire.cpace import KeyExchange, generator, session_key

SECRET, CHANNEL = b"Password", b"\x0bA_initiator\x0bB_responder"
SESSION, GENERATOR, SCALAR_A, SCALAR_B, SHARE_A, SHARE_B, POINT = map(
    bytes.fromhex,
    (
        "7e4b4791d6a8ef019b936c79fb7f2c57",
        "d04bf6d41f6a289632a2e929fa29bebd51092512a7829fdde7d314b62f05a73f",
        "21b4f4bd9e64ed355c3eb676a28ebedaf6d8f17bdc365995b319097153044080",
        "848b0779ff415f0af4ea14df9dd1d3c29ac41d836c7808896c4eba19c51ac40a",
        "1d13c89278cdadd826f6d8d7f887701430f8380ddc17611cdd6dc989ce0c9f32",
        "248cccf6d5cdc3646f0ad593f9e6cef4e69d4945f8372e623512ecea32185623",
        "5b067effbdc0b2a0e1d907b21ebb25cfedb96a852179a847c37e43ee71322c6b",
    ),
)
KEY = (
    "6e19b875f7a561d6b3ca3dbb9ef42ac55de3e717881018204b8922b4d5e53bb2"
    "aa82c300bea7b65d2b671da71922ddf6472301b79bc270adfa8bf413285f2263"
)
LOW_ORDER = [
    *("00" * 32, "01" + "00" * 31),
    *(first + "ff" * 30 + "7f" for first in ("ec", "ed", "ee")),
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
]


def exchange(scalar=None, secret=SECRET, channel=CHANNEL, session=SESSION):
    return KeyExchange(secret, channel=channel, session=session, scalar=scalar)


def test_generator_shares_and_key_are_those_of_the_draft_however_blinded():
    assert {generator(SECRET, channel=CHANNEL, session=SESSION) for _ in range(20)} == {GENERATOR}
    assert (exchange(SCALAR_A).share, exchange(SCALAR_B).share) == (SHARE_A, SHARE_B)
    assert session_key(SESSION, POINT, SHARE_A, b"ADa", SHARE_B, b"ADb").hex() == KEY
    expected = session_key(SESSION, POINT, SHARE_A, b"", SHARE_B, b"")
    assert exchange(SCALAR_A).key_of_initiator(SHARE_B) == expected
    assert exchange(SCALAR_B).key_of_responder(SHARE_A) == expected


@pytest.mark.parametrize("share", [*LOW_ORDER, "", "09", "09" * 33])
def test_a_point_of_low_order_and_what_is_no_point_are_refused(share):
    one = exchange()
    for agree in (one.key_of_initiator, one.key_of_responder):
        with pytest.raises(ValueError):
            agree(bytes.fromhex(share))


@pytest.mark.parametrize("other", [{"secret": b"x"}, {"channel": b"x"}, {"session": b"x"}, {}])
def test_the_keys_agree_where_all_is_the_same_and_depend_on_the_roles(other):
    for _ in range(10):
        first, second = exchange(), exchange(**other)
        key = first.key_of_initiator(second.share)
        assert (second.key_of_responder(first.share) == key) == (not other)
        assert second.key_of_initiator(first.share) != key


def test_each_generator_is_on_the_curve_and_not_on_its_twist():
    p, j = 2**255 - 19, 486662
    for number in range(50):
        point = generator(SECRET, channel=CHANNEL, session=bytes([number]))
        u = int.from_bytes(point, "little")
        assert pow(u**3 + j * u**2 + u, (p - 1) // 2, p) == 1


def test_a_part_of_more_than_127_bytes_is_refused():
    with pytest.raises(ValueError, match="longer than 127 bytes"):
        exchange(session=bytes(128))
