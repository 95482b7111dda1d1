import MarkdownIt, { type Token } from 'markdown-it'
import { renderStates } from './diagram.ts'
import { highlight } from './highlight.ts'
import { type Links, type Page, resolveLink, slugOf } from './page.ts'

/** Renders the Markdown of pages as HTML. */

/** A part of a page from one heading to the next, with its text without markup. */
export type Section = { level: number; heading: string; anchor: string; text: string }
export type Rendered = { html: string; sections: readonly Section[] }

type Environment = { page: Page; anchors: Set<string>; sections: Section[] }

const textOf = (inline: Token | undefined): string =>
  (inline?.children ?? [])
    .map(({ type, content }) => (type === 'text' || type === 'code_inline' ? content : ''))
    .join('')

/** Returns the text of a token that is code and nothing else. */
function onlyCode(inline: Token | undefined): string | null {
  const [first, ...others] = (inline?.children ?? []).filter(each => each.type !== 'text' || each.content.trim() !== '')
  return first?.type === 'code_inline' && others.length === 0 ? first.content : null
}

/** Gives a token an anchor that no other token of the page has. */
function setAnchor(token: Token, wanted: string, { anchors }: Environment): string {
  let anchor = wanted
  for (let count = 1; anchors.has(anchor); count++) anchor = `${wanted}-${count}`
  anchors.add(anchor)
  token.attrSet('id', anchor)
  return anchor
}

/**
 * Sets the anchors of headings and rows, and collects the sections. A heading or row that is code has this code as its anchor,
 * other headings the usual one.
 */
function readSections(tokens: Token[], env: Environment): void {
  for (const [index, token] of tokens.entries()) {
    if (token.type === 'heading_open' && token.tag !== 'h1') {
      const inline = tokens[index + 1]
      const text = textOf(inline)
      const anchor = setAnchor(token, onlyCode(inline) ?? slugOf(text), env)
      env.sections.push({ level: Number(token.tag.slice(1)), heading: text, anchor, text: '' })
    } else if (token.type === 'inline' && tokens[index - 1].type !== 'heading_open') {
      const section = env.sections.at(-1)
      if (section) section.text += ` ${textOf(token)}`
    }
    const name = env.page.anchorsRows && token.type === 'tr_open' ? onlyCode(tokens[index + 2]) : null
    if (name) setAnchor(token, name, env)
  }
}

/** Returns a renderer of pages. Raw HTML is shown as text. */
export function createRenderer(pages: ReadonlyMap<string, Page>, links: Links): (page: Page) => Rendered {
  const markdown = new MarkdownIt({ html: false, highlight })
  markdown.renderer.rules.table_open = () =>
    '<div class="table" tabindex="0" role="region" aria-label="Table"><table>\n'
  markdown.renderer.rules.table_close = () => '</table></div>\n'
  markdown.renderer.rules.link_open = (tokens, index, options, env, renderer) => {
    const token = tokens[index]
    const { page } = env as Environment
    const target = resolveLink(page, pages, String(token.attrGet('href')))
    if (target === null) {
      const close = tokens.findIndex((each, at) => at > index && each.type === 'link_close')
      tokens[close].hidden = true
      return ''
    }
    const isHere = 'path' in target && target.path === page.path
    const hash = 'path' in target && target.anchor ? `#${target.anchor}` : ''
    token.attrSet('href', 'href' in target ? target.href : isHere && hash ? hash : links(target.path, page.path) + hash)
    return renderer.renderToken(tokens, index, options)
  }
  markdown.renderer.rules.link_close = (tokens, index) => (tokens[index].hidden ? '' : '</a>')
  const { fence } = markdown.renderer.rules
  markdown.renderer.rules.fence = (...args) => {
    const [tokens, index] = args
    const picture = tokens[index].info === 'mermaid' ? renderStates(tokens[index].content) : null
    return picture ?? (fence as NonNullable<typeof fence>)(...args).replace('<pre>', '<pre tabindex="0">')
  }
  return page => {
    const env: Environment = {
      page,
      anchors: new Set(),
      sections: [{ level: 1, heading: page.title, anchor: '', text: '' }],
    }
    const tokens = markdown.parse(withoutComments(page.markdown()), env)
    readSections(tokens, env)
    return { html: markdown.renderer.render(tokens, markdown.options, env), sections: env.sections }
  }
}

const withoutComments = (text: string): string => text.replace(/^<!--.*-->\n/gm, '')

/** Returns the Markdown of a page with the addresses of its links. Links to files outside of the pages become text. */
export function publishedMarkdown(page: Page, pages: ReadonlyMap<string, Page>, links: Links): string {
  return withoutComments(page.markdown()).replace(/\[([^\]]*)\]\(([^)\s]+)\)/g, (whole, text: string, link: string) => {
    if (!/^[\w./-]+\.md(#|$)/.test(link)) return whole
    const target = resolveLink(page, pages, link)
    if (target === null || 'href' in target) return text
    return `[${text}](${links(`${target.path || 'index'}.md`, page.path)}${target.anchor ? `#${target.anchor}` : ''})`
  })
}
