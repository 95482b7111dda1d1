import { GUIDE_GROUPS } from './guides.ts'
import { escapeHtml } from './html.ts'
import { withIcon } from './icon.ts'
import type { Rendered } from './markdown.ts'
import type { Links, Page } from './page.ts'

/** The HTML around the content of a page. */

const head = (title: string): string =>
  withIcon(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(title)} – Muster</title>`)

const styleSheet = (address: string): string => `<link rel="stylesheet" href="${address}">`

/** Fewest sections of a page that has a list of them. */
const MIN_SECTIONS = 3

const groupOf = ({ section, group }: Page): string | undefined => (section === 'Guides' ? group : section)

const isNeighbour = (page: Page) => (each: Page) => each.section !== 'Start' && each.section === page.section

/** Returns the groups of the navigation: closed, but for the group of the page and, on the start page, all groups of guides. */
function navigationOf(page: Page, pages: readonly Page[], to: (path: string) => string): string {
  const item = (each: Page) =>
    `<li><a href="${to(each.path)}"${each === page ? ' aria-current="page"' : ''}>${escapeHtml(each.title)}</a></li>`
  return [...GUIDE_GROUPS, 'Reference', 'API']
    .map(group => {
      const members = pages.filter(each => groupOf(each) === group)
      if (members.length === 0) return ''
      const open = members.includes(page) || (page.path === '' && group !== 'API') ? ' open' : ''
      const interactive = group === 'API' ? `<li><a href="${to('reference')}">Interactive reference</a></li>` : ''
      return `<details${open}><summary>${group}</summary><ul>${interactive}${members.map(item).join('')}</ul></details>`
    })
    .join('')
}

/** Returns the list of the sections of a page. */
function contentsOf({ sections }: Rendered): string {
  const listed = sections.filter(({ level }) => level === 2)
  if (listed.length < MIN_SECTIONS) return ''
  const items = listed.map(
    ({ anchor, heading }) => `<li><a href="#${escapeHtml(anchor)}">${escapeHtml(heading)}</a></li>`,
  )
  return `<nav class="contents" aria-label="On this page"><strong>On this page</strong><ul>${items.join('')}</ul></nav>`
}

/** Returns the links to the pages before and after a page, in the order of the navigation. */
function neighboursOf(page: Page, pages: readonly Page[], to: (path: string) => string): string {
  const order = pages.filter(isNeighbour(page))
  const at = order.indexOf(page)
  if (at < 0) return ''
  const link = (rel: 'prev' | 'next', label: string, target: Page | undefined) =>
    target ? `<a rel="${rel}" href="${to(target.path)}">${label}: ${escapeHtml(target.title)}</a>` : ''
  return `<nav class="neighbours" aria-label="Previous and next page">${link('prev', 'Previous', order[at - 1])}${link('next', 'Next', order[at + 1])}</nav>`
}

/**
 * Returns the page with navigation, and with search if the deployment has all pages. Only the search needs the script. No
 * heading has an anchor with a dot, as this id has.
 */
export function layout(page: Page, rendered: Rendered, pages: readonly Page[], links: Links): string {
  const to = (path: string) => links(path, page.path)
  const hasSearch = pages.some(each => each.path === '')
  const script = hasSearch ? `\n<script type="module" src="${to('assets/docs.js')}"></script>` : ''
  const search = `<a class="brand" href="${to('')}">Muster</a>
<form role="search" hidden data-index="${to('search.json')}">
<input type="search" maxlength="200" aria-label="Search" placeholder="Search" autocomplete="off"><ul class="results" aria-label="Results"></ul></form>`
  return `${head(page.title)}${styleSheet(to('assets/docs.css'))}${script}</head>
<body><a class="skip" href="#page.content">Skip to content</a>
<header>${hasSearch ? search : '<span class="brand">Muster</span>'}
<a href="${to(`${page.path || 'index'}.md`)}">Markdown</a></header>
<div class="columns"><nav class="pages" aria-label="Pages">${navigationOf(page, pages, to)}</nav>
${contentsOf(rendered)}<main id="page.content">${rendered.html}${neighboursOf(page, pages, to)}</main></div></body></html>`
}

/** Returns the page of the interactive reference. Without its script it leads to the static pages. */
export function referenceLayout(isBuilt: boolean, pages: readonly Page[], links: Links): string {
  const to = (path: string) => links(path, 'reference')
  const list = pages
    .filter(each => each.section === 'API')
    .map(each => `<li><a href="${to(each.path)}">${escapeHtml(each.title)}</a></li>`)
    .join('')
  const opening = head('API reference')
  if (!isBuilt)
    return `${opening}${styleSheet(to('assets/docs.css'))}</head><body><main id="page.content"><h1>API reference</h1>
<p>The interactive reference is not built in this deployment. <code>npm run build</code> in the checkout builds it; the development
packages must be installed. These pages describe the same operations:</p><ul>${list}</ul></main></body></html>`
  return `${opening}</head><body><div id="reference" data-document="${to('openapi.json')}"></div>
<noscript><main><h1>API reference</h1><p>This page needs scripts. These pages do not:</p><ul>${list}</ul></main></noscript>
<script src="${to('assets/scalar.js')}"></script><script src="${to('assets/reference.js')}"></script></body></html>`
}
