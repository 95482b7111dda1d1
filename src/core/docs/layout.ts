import { withIcon } from './icon.ts'
import type { Links, Page } from './page.ts'

/** The HTML around the content of a page. */

export const escapeHtml = (text: string): string =>
  text.replace(/[&<>"]/g, each => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[each] as string)

const SECTIONS = ['Guides', 'Reference', 'API'] as const

const head = (title: string): string =>
  withIcon(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(title)} – Muster</title>`)

const styleSheet = (address: string): string => `<link rel="stylesheet" href="${address}">`

/**
 * Returns the page with navigation, and with search if the deployment has all pages. Only the search needs the script. No
 * heading has an anchor with a dot, as this id has.
 */
export function layout(page: Page, content: string, pages: readonly Page[], links: Links): string {
  const to = (path: string) => links(path, page.path)
  const item = (each: Page) =>
    `<li><a href="${to(each.path)}"${each === page ? ' aria-current="page"' : ''}>${escapeHtml(each.title)}</a></li>`
  const navigation = SECTIONS.map(section => {
    const members = pages.filter(each => each.section === section)
    const open = members.includes(page) || section !== 'API' ? ' open' : ''
    const interactive = section === 'API' ? `<li><a href="${to('reference')}">Interactive reference</a></li>` : ''
    return members.length === 0
      ? ''
      : `<details${open}><summary>${section}</summary><ul>${interactive}${members.map(item).join('')}</ul></details>`
  })
  const hasSearch = pages.some(each => each.path === '')
  const script = hasSearch ? `\n<script type="module" src="${to('assets/docs.js')}"></script>` : ''
  const search = `<a class="brand" href="${to('')}">Muster</a>
<form role="search" hidden data-index="${to('search.json')}">
<input type="search" aria-label="Search" placeholder="Search" autocomplete="off"><ul class="results" aria-label="Results"></ul></form>`
  return `${head(page.title)}${styleSheet(to('assets/docs.css'))}${script}</head>
<body><a class="skip" href="#page.content">Skip to content</a>
<header>${hasSearch ? search : '<span class="brand">Muster</span>'}
<a href="${to(`${page.path || 'index'}.md`)}">Markdown</a></header>
<div class="columns"><nav aria-label="Pages">${navigation.join('')}</nav>
<main id="page.content">${content}</main></div></body></html>`
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
