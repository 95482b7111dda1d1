import { readFileSync } from 'node:fs'
import type { Operation } from '../api/operation.ts'
import type { Config } from '../base/config.ts'
import { cataloguePages, requiredPages } from './catalogues.ts'
import type { Description } from './description.ts'
import { guideImages, guides } from './guides.ts'
import { layout, referenceLayout } from './layout.ts'
import { createRenderer, publishedMarkdown, type Rendered } from './markdown.ts'
import type { Links, Page } from './page.ts'
import { Reference } from './reference.ts'
import { isReferenceBuilt, SCALAR } from './scalar.ts'
import { searchIndex } from './search.ts'

/** The documentation: pages as HTML and Markdown, the interactive reference, and the assets of both. */

/** Path of the Markdown of a page. */
const markdownOf = (path: string): string => `${path || 'index'}.md`

/** A file; the content of pictures is bytes. */
export type DocsFile = { type: string; text: string | Buffer; policy?: string }

const HTML = 'text/html; charset=utf-8'
const MARKDOWN = 'text/markdown; charset=utf-8'
const SCRIPT = 'text/javascript; charset=utf-8'
const JSON_TEXT = 'application/json; charset=utf-8'

const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
const NO_EMBEDDING = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
const PAGE_POLICY = `${POLICY}; img-src 'self' data:; ${NO_EMBEDDING}; require-trusted-types-for 'script'; trusted-types 'none'`
/** The interactive reference writes style elements. */
const REFERENCE_POLICY = `${POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")}; img-src 'self' data:; ${NO_EMBEDDING}`

const assetOf = (name: string): string => readFileSync(new URL(`assets/${name}`, import.meta.url), 'utf8')

export class Site {
  readonly #pages: readonly Page[]
  readonly #byPath: Map<string, Page>
  readonly #links: Links
  readonly #render: (page: Page) => Rendered
  readonly #files: Map<string, () => DocsFile>

  /**
   * @param describe returns the OpenAPI document
   * @param links addresses of pages and assets
   */
  constructor(
    config: Pick<Config, 'BASE_URL' | 'DOCS_ENABLED'>,
    operations: readonly Operation[],
    describe: () => Description,
    links: Links,
  ) {
    const description = config.DOCS_ENABLED ? describe() : null
    const reference = description && new Reference(description, config.BASE_URL)
    const required = requiredPages(operations)
    this.#pages =
      description && reference
        ? [...guides(), ...required, ...cataloguePages(description), ...reference.pages()]
        : required
    this.#byPath = new Map(this.#pages.map(page => [page.path, page]))
    const start = this.#byPath.get('')
    if (start) this.#byPath.set('guides/index', start)
    this.#links = links
    this.#render = createRenderer(this.#byPath, links)
    this.#files = new Map([
      ...this.#pageFiles(),
      ...this.#assets(),
      ...(description && reference ? this.#referenceFiles(reference, description) : []),
    ])
  }

  /** Returns title and address of the Markdown of all pages. */
  pages(): { path: string; title: string }[] {
    return this.#pages.map(({ path, title }) => ({ path: this.#links(markdownOf(path), ''), title }))
  }

  /** Returns the Markdown of a page by its address, or null. */
  markdownAt(address: string): string | null {
    const page = this.#pages.find(({ path }) => this.#links(markdownOf(path), '') === address)
    return page ? publishedMarkdown(page, this.#byPath, this.#links) : null
  }

  /** Paths of all files, below /docs; a page has a path without a suffix. */
  paths(): string[] {
    return [...this.#files.keys()]
  }

  /** Returns a file, or null. */
  file(path: string): DocsFile | null {
    return this.#files.get(path)?.() ?? null
  }

  *#pageFiles(): Generator<[string, () => DocsFile]> {
    for (const page of this.#pages) {
      yield [
        page.path,
        () => ({
          type: HTML,
          policy: PAGE_POLICY,
          text: layout(page, this.#render(page), this.#pages, this.#links),
        }),
      ]
      yield [
        markdownOf(page.path),
        () => ({ type: MARKDOWN, text: publishedMarkdown(page, this.#byPath, this.#links) }),
      ]
    }
  }

  *#assets(): Generator<[string, () => DocsFile]> {
    yield ['assets/docs.css', () => ({ type: 'text/css; charset=utf-8', text: assetOf('docs.css') })]
    yield ['assets/docs.js', () => ({ type: SCRIPT, text: assetOf('docs.js') })]
    for (const { name, file } of guideImages())
      yield [`guides/images/${name}`, () => ({ type: 'image/png', text: readFileSync(file) })]
    yield ['assets/query.js', () => ({ type: SCRIPT, text: assetOf('query.js') })]
    const search = new URL(import.meta.resolve('minisearch'))
    yield ['assets/minisearch.js', () => ({ type: SCRIPT, text: withoutSourceMap(readFileSync(search, 'utf8')) })]
  }

  *#referenceFiles(reference: Reference, description: Description): Generator<[string, () => DocsFile]> {
    const isBuilt = isReferenceBuilt()
    yield [
      'reference',
      () => ({ type: HTML, policy: REFERENCE_POLICY, text: referenceLayout(isBuilt, this.#pages, this.#links) }),
    ]
    if (isBuilt) yield ['assets/scalar.js', () => ({ type: SCRIPT, text: readFileSync(SCALAR, 'utf8') })]
    yield ['assets/reference.js', () => ({ type: SCRIPT, text: assetOf('reference.js') })]
    yield ['openapi.json', () => ({ type: JSON_TEXT, text: JSON.stringify(withSamples(description, reference)) })]
    yield ['search.json', () => ({ type: JSON_TEXT, text: this.#searchIndex(reference) })]
    yield ['llms.txt', () => ({ type: 'text/plain; charset=utf-8', text: this.#llms() })]
  }

  #searchIndex(reference: Reference): string {
    const rendered = this.#pages
      .filter(({ section }) => section === 'Guides')
      .map(page => ({ page, sections: this.#render(page).sections }))
    return searchIndex(rendered, this.#pages, reference, this.#links)
  }

  /** Returns the index of the pages as Markdown, for models. */
  #llms(): string {
    const lines = this.#pages.map(({ path, title }) => `- [${title}](${this.#links(markdownOf(path), 'llms.txt')})`)
    return `# Muster\n\n> Self-hosted back end for AI agent applications.\n\n${lines.join('\n')}\n`
  }
}

/** Returns a script without the address of its source map, which is not served. */
const withoutSourceMap = (script: string): string => script.replace(/^\/\/# sourceMappingURL=.*$/m, '')

/** Returns the document with examples of each operation. */
function withSamples(description: Description, reference: Reference): Description {
  const samples = reference.samples()
  const paths = Object.entries(description.paths).map(([path, methods]) => [
    path,
    Object.fromEntries(
      Object.entries(methods).map(([method, operation]) => [
        method,
        { ...operation, 'x-codeSamples': samples.get(operation.operationId) },
      ]),
    ),
  ])
  return { ...description, paths: Object.fromEntries(paths) }
}
