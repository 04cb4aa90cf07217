"""Questions of readers, in their own words: the site's search shows the answer among the first.

The questions are those of people who knew one sentence about the project, and had read no page.
"""

from __future__ import annotations

from pathlib import Path

import browser
from test_site import SITE, pytestmark  # noqa: F401

WORDS = "glossary.html#"
FIRST = 3  # so many results are looked at
# the sections that answer each question; a page or anchor may also be the begin of a name
QUESTIONS = {
    "How far off can a reported count be from the true count?": ["what-are-the-limits-of-a-count"],
    "Which Python versions does the package support?": ["how-do-i-install-fedtally-with-pip"],
    "How do I get the results out as a CSV file?": ["how-do-i-save-results"],
    "What sketch width and depth should I choose for about 10,000 users?": [
        "which-width-and-depth"
    ],
    "How do I install the server on a plain Linux machine?": ["serving.html#set-up-a-server"],
    "What command starts the server?": ["serving.html#set-up-a-server"],
    "How do I close a campaign, get the result and delete its data?": ["how-do-i-delete-an-old"],
    "Is there a container image or a service unit I can use?": ["is-there-a-container-image"],
    "What is the maximum request size, and is there rate limiting?": ["how-large-may-a-device-s"],
    "Which secret keys does the server hold, and where are they kept?": ["where-are-secret-keys"],
    "How do clients know the public keys really belong to other clients?": [
        "how-does-a-client-check"
    ],
    "What exactly can the server learn about one person's item?": ["can-the-server-or-anyone-find"],
    "Is differential privacy switched on by default?": ["is-anything-protected-without"],
    "Who adds the noise, the devices or the server?": ["who-adds-the-noise"],
    "Can I find the most common items without giving a list of candidates beforehand?": [
        "private.html#without-a-list",
        "do-i-need-a-list",
    ],
    "How many bytes does each device have to send?": ["how-many-kilobytes"],
    "How do I plot the top items with error bars?": ["how-do-i-make-a-bar-chart"],
    "What do I have to back up, and how do I restore it?": ["operations.html#what-to-back-up"],
    "How do I set up the TLS certificate?": ["how-do-i-set-up-and-renew"],
    "Which port does the server listen on, and how do I change it?": [
        "which-ports-does-the-server"
    ],
    "Do I need two servers, and must different parties run them?": [
        "must-the-two-servers",
        "do-i-need-two-servers",
    ],
    "Where does each device get its randomness for the masks?": ["where-does-the-randomness"],
    "What happens to a round if some devices drop out before it finishes?": [
        "deploying.html#if-many-drop-out",
        "how-many-devices-may-drop-out",
    ],
    "Under what licence is it released, and does that allow commercial use?": ["which-licence"],
    "Which cryptographic primitives are used, and with what parameters?": [
        "protocol.html#primitives"
    ],
    "How does the privacy budget add up if I run the same count every day?": ["do-i-pay-again"],
    "What value of epsilon is reasonable for a first survey?": ["which-epsilon-should-i-take"],
    "Why is the estimated count of an item negative?": ["why-are-some-counts"],
    "Can one user contribute several items instead of only one?": ["how-can-one-person"],
    "How do I tell whether the difference between two weeks' counts is real or just noise?": [
        "is-this-week-s-rise",
        "tables.html#compare-two-weeks",
    ],
    "Can I put the server behind a reverse proxy such as nginx?": ["does-the-server-need-nginx"],
    "How do I enrol devices or restrict who may submit?": ["how-do-i-allow-only-enrolled"],
    "Where does the server store its data on disk?": ["which-files-does-the-server-keep"],
    "What do the logs contain, and could they reveal anything about a device?": ["do-the-logs"],
    "Where does the server's configuration file live?": ["is-there-a-configuration-file"],
    "How do I report a security vulnerability?": ["threat-model.html#report-a-vulnerability"],
    "Has an independent third party audited the code?": ["has-anyone-independent"],
    "How long does the server keep the masked submissions?": ["how-long-does-each-server"],
    "Which metadata, such as IP addresses, does the server see or log?": ["which-metadata"],
    "Can the server fake many clients to isolate one real person?": ["can-a-server-invent"],
    "Below what count is an item indistinguishable from zero?": ["below-what-count"],
    "Are upper and lower case spellings counted as one item?": ["are-paris-paris"],
    "What does the error about mismatched sketches mean?": ["what-does-an-error-about-sketches"],
    "Can I merge the sums from two separate groups into one total?": ["how-do-i-add-or-merge"],
    "Is there a health check or metrics endpoint I can monitor?": ["which-url-is-the-health"],
    "What are the system requirements for the server?": ["which-linux-and-python"],
    "What should I do if a server key leaks?": ["what-if-the-server-s-key"],
    "How do I upgrade without breaking older devices?": ["operations.html#upgrade"],
    "Which third-party dependencies does it pull in?": ["how-many-dependencies"],
    "Can a malicious client skew the totals?": ["can-one-malicious-client"],
    "Is there a formal proof behind the security claim?": ["is-there-a-written-security-proof"],
    "Does the masked data still count as personal data under the GDPR?": ["is-a-masked-report"],
    "How many clients must collude with the server before an input is exposed?": [
        "how-many-clients-may-collude"
    ],
    "How many devices can one server handle in a single round?": ["how-many-devices-can-one"],
}
# The results of a question, the best last, as the search of Sphinx and `docs/sections_found.py`
# make them.
ASK = """(question => {
  const [query, terms, excluded, highlighted, objects] = Search._parseQuery(question);
  return Search._performSearch(query, terms, excluded, highlighted, objects)
    .map(([page, title, anchor]) => `${page}.html${anchor}`);
})"""


def test_a_question_finds_its_answer(tmp_path: Path) -> None:
    with browser.Page(tmp_path) as page:
        page.go(f"{(SITE / 'search.html').as_uri()}?q=fedtally")
        assert page.value("typeof SECTIONS") == "object"
        lost = {}
        for question, answers in QUESTIONS.items():
            found = page.value(f"{ASK}({question!r})")[: -FIRST - 1 : -1]
            sections = tuple(each if ".html" in each else WORDS + each for each in answers)
            if not any(result.startswith(sections) for result in found):
                lost[question] = found
    assert lost == {}
