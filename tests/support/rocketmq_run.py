"""The 200-message run of the format page (section 11.2): its messages, and digests of the files that both real stores
wrote.
"""

from __future__ import annotations

from tests.reference.rocketmq_model import Message, properties_bytes

RUN_DIGESTS = {
    "4.9.3": {
        "commitlog": "fc8f84b2facc99ac64cab19aee640c44dbaf5c25213110239ae880a3d3ba2f6d",
        "consumequeue/TopicA/0": "648ea81348057336cf1b15b95fc7d60227758dc5600100adf409e62cff38eba2",
        "consumequeue/TopicA/1": "eb330cc7c8fa8a6c28589e92722d7fa5bbe3bbb24e8013e939d800b44b5f1aeb",
        "consumequeue/TopicA/2": "80c51794ea46304b1b51ff4fa7306218fa9bc7ae94c0f6c33ef8fa9c449999c1",
        "consumequeue/TopicA/3": "10e96e300eae98e5c7d414c5091d3d1be2d2314de1cb4da48913e383e2a2ff5b",
        "consumequeue/TopicB/0": "8235048e049b5f9e8356bcea89ca9158e74426a4f869a0eff5806e6439d71850",
        "consumequeue/TopicB/1": "c3471ae6298eb1f91229d29b79aaf8c02f0199f59d1330fe8cd3b929de9b2327",
        "consumequeue/TopicB/2": "bc0fbf4fc4e7778959150a6e5b3027f244a4b80079076446e0ceef2f25fcc77c",
        "consumequeue/TopicB/3": "2c15b4eb4e6acf764a9780c01d1caf3f6b2af63ffa833d7a365c647a95463891",
    },
    "5.3.3": {
        "commitlog": "3f6bf25151d5447b941d6a1f0dd9dda98a8ce49d14f7fdc1ba0ca9c56e1e2df9",
        "consumequeue/TopicA/0": "5d42b20dec171dcb97e982db0ec330749f87c4c21f0751c288ee8d50368b5e3a",
        "consumequeue/TopicA/1": "7fe58cadd2444f94a9ed8b0bd5bf5dcd85d3e234db2218f00ec6985a67bb51dc",
        "consumequeue/TopicA/2": "b7a417e14bc24b8e63e61f1732909fbb099db94517fd4831b42b6fe205a61934",
        "consumequeue/TopicA/3": "a3cbf5112ef7c77746cc9e963320980cdb49697f382204295498b85f292f1b09",
        "consumequeue/TopicB/0": "c13069aed871829106d653c0150ffd537500816328839302e8675e95b3f47ef9",
        "consumequeue/TopicB/1": "a486710d93a66baae01cd3fc578be1786cbe71c8e0e6ccd5fe0ab60469e5f71e",
        "consumequeue/TopicB/2": "50d5aee57723427b5341fdb79e7c8278823468bdfc8ec728d4e0bf1d3afacce1",
        "consumequeue/TopicB/3": "370bbd4091c4ece40cac2f9228bacb2be4e49b70ccf547153235e9f9c2429072",
    },
}


def run_message(i: int, version: str) -> Message:
    """Message `i` of the 200-message run of section 11.2."""
    clock = 1700000000000 + 777 * i
    named = [("KEYS", f"k{i % 10} k{i}"), ("TAGS", f"Tag{i % 5}"), ("UNIQ_KEY", f"{i:032X}"), ("user-prop", str(i * i))]
    return Message(
        topic="TopicA" if i % 3 else "TopicB",
        queue_id=i % 4,
        body=bytes((7 * i + j) % 251 for j in range((13 * i) % 500)),
        properties=properties_bytes(named, trailing=version == "5.3.3"),
        store_ms=clock,
        born_ms=clock - 5,
        flag=i,
        sys_flag=[0, 0, 0, 2, 8, 4, 12][i % 7],
        reconsume_times=i % 3,
        prepared_offset=1000 * i,
        born_host=f"10.0.0.{i % 250 + 1}:{40000 + i}",
        store_host="192.168.1.10:10911",
    )
