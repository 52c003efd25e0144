from ninfer_core.plugin_host import load_plugins


def test_both_speculators_are_found_with_their_limits():
    found = load_plugins().registry.speculators
    assert {name: found[name].spec.max_drafts for name in ("mtp", "ngram")} == {
        "mtp": 5, "ngram": 15}
    assert found["mtp"].spec.component == "mtp"
