#!/bin/sh
# Puts the built pages of a version beside those of the others on the branch gh-pages, and makes it the front page.
#
#   scripts/publish_pages.sh VERSION
set -eu

version=$1 site=$(mktemp -d)
trap 'git worktree remove --force "$site"' EXIT
if git fetch --quiet origin gh-pages:gh-pages 2>/dev/null; then
    git worktree add --quiet "$site" gh-pages
else
    git worktree add --quiet --detach "$site"
    (cd "$site" && git checkout --quiet --orphan gh-pages && git rm -rfq .)
fi
rm -rf "${site:?}/$version"
cp -R docs/_build/html "$site/$version"
cp docs/versions.json "$site/"
touch "$site/.nojekyll"
echo "<meta http-equiv=\"refresh\" content=\"0; url=$version/\"><a href=\"$version/\">nsq_ha $version</a>" >"$site/index.html"
cd "$site"
git add --all
git -c user.name=release -c user.email=release@localhost commit --quiet -m "Publish the pages of $version"
git push --quiet origin gh-pages
