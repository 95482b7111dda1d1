/** Pages of the documentation. Each is written or generated as Markdown; HTML follows from it. */
export type Page = {
  /** Path below /docs without a suffix; empty for the start page. */
  path: string
  title: string
  section: 'Start' | 'Guides' | 'Reference' | 'API'
  /** Group of a guide in the navigation. */
  group?: string
  /** Folder to which the links of the Markdown are relative, as a path below /docs. */
  folder: string
  /** Whether rows of tables have an anchor: the code in their first cell. */
  anchorsRows?: boolean
  markdown(): string
}

/** Addresses of pages and assets, as seen from a page; `path` is below /docs and may have a suffix. */
export type Links = (path: string, from: string) => string

/** An address of a link in a page: its page and anchor, an address elsewhere, or null for a file outside of the pages. */
export type Target = { path: string; anchor: string } | { href: string } | null

/** Resolves a link of a page. Files of the repository that are no pages have no address here. */
export function resolveLink(page: Page, pages: ReadonlyMap<string, Page>, link: string): Target {
  if (/^[a-z]+:/i.test(link)) return { href: link }
  const [file, anchor = ''] = link.split('#')
  if (file === '') return { path: page.path, anchor }
  const path = new URL(file, `http://docs/${page.folder}`).pathname.slice(1)
  const target = file.endsWith('.md') ? pages.get(path.slice(0, -'.md'.length)) : undefined
  return target ? { path: target.path, anchor } : null
}

/** Escapes text for Markdown outside of code, in tables too. Code in backticks is unchanged. */
export const escapeMarkdown = (text: string): string =>
  text
    .split(/(`[^`\n]+`)/)
    .map((part, index) => (index % 2 === 1 ? part : part.replace(/[\\*_[\]<>#~]/g, '\\$&')))
    .join('')
    .replaceAll('|', '\\|')
    .replace(/\s*\n\s*/g, ' ')

/** Returns text as code, in tables too. */
export const code = (text: string): string =>
  `${text.includes('`') ? `\`\` ${text} \`\`` : `\`${text}\``}`.replaceAll('|', '\\|')

/** Returns a table. */
export const table = (head: readonly string[], rows: readonly (readonly string[])[]): string =>
  [head, head.map(() => '---'), ...rows].map(cells => `| ${cells.join(' | ')} |`).join('\n')

/** Returns the anchor of a heading. */
export const slugOf = (heading: string): string =>
  heading
    .toLowerCase()
    .replace(/[^\w\- ]/g, '')
    .replaceAll(' ', '-')
