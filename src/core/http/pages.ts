import { errorCodes, errorEntry } from '../api/errors.ts'
import type { Operation } from '../api/operation.ts'
import { actionCatalogue } from '../iam/catalogue.ts'
import { openApiDocument, refusalCodes } from './openapi.ts'

/** The HTML pages below /docs: API reference, error catalogue and action catalogue. */

/** JSON Schema in the form of the OpenAPI document. */
type Schema = Record<string, unknown> & {
  $ref?: string
  type?: string | string[]
  format?: string
  description?: string
  enum?: unknown[]
  const?: unknown
  anyOf?: Schema[]
  oneOf?: Schema[]
  items?: Schema
  additionalProperties?: Schema | boolean
  properties?: Record<string, Schema>
  required?: string[]
}
type Content = Record<string, { schema: Schema }>
type Parameter = {
  name: string
  in: string
  required?: boolean
  style?: string
  schema: Schema
  description?: string
}
type Shared<T> = T | { $ref: string }
type Described = {
  parameters?: Shared<Parameter>[]
  requestBody?: { required: boolean; content: Content }
  responses: Record<string, Shared<{ description: string; content?: Content }>>
}

const escapeHtml = (text: string): string =>
  text.replace(/[&<>"]/g, character => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[character] as string)

const page = (
  title: string,
  body: string,
): string => `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>${title}</title><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem;border-bottom:1px solid #d0d7de}
code,pre{font:13px/1.45 ui-monospace,monospace;background:#f6f8fa;border-radius:4px}code{padding:.1em .3em}pre{padding:.7em;overflow:auto}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #d0d7de;padding:.35em .6em;text-align:left;vertical-align:top}
.method{display:inline-block;min-width:4.2em;font-weight:600}details{margin:.3em 0}summary{cursor:pointer}nav a{margin-right:1em}
</style></head><body><nav><a href="/docs">Reference</a><a href="/docs/errors">Errors</a><a href="/docs/permissions">Permissions</a><a href="/openapi.json">OpenAPI (JSON)</a><a href="/openapi.yaml">OpenAPI (YAML)</a></nav>
<h1>${title}</h1>${body}</body></html>`

/** Schema keywords that are displayed, except the limits of every integer. */
const LIMITS = ['minimum', 'exclusiveMinimum', 'maximum', 'minLength', 'maxLength', 'minItems', 'maxItems', 'default']

/** Returns the type of a schema as one line of HTML; a named schema is a link to its record. */
function typeOf(schema: Schema): string {
  if (schema.$ref) {
    const name = schema.$ref.slice(schema.$ref.lastIndexOf('/') + 1)
    return `<a href="#schema-${name}">${name}</a>`
  }
  const alternatives = schema.anyOf ?? schema.oneOf
  if (alternatives) return alternatives.map(typeOf).join(' or ')
  const values = schema.enum ?? (schema.const === undefined ? null : [schema.const])
  if (values) return values.map(value => `<code>${escapeHtml(String(value))}</code>`).join(' or ')
  const type = [schema.type ?? 'any'].flat().join(' or ')
  const limits = LIMITS.filter(name => name in schema && Math.abs(Number(schema[name])) !== Number.MAX_SAFE_INTEGER)
  const facts = [schema.format, ...limits.map(name => `${name} ${JSON.stringify(schema[name])}`)].filter(Boolean)
  const text = escapeHtml([type, ...facts].join(', '))
  const element = schema.items ?? schema.additionalProperties
  if (typeof element === 'object' && Object.keys(element).length > 0) return `${text} of ${typeOf(element)}`
  return schema.properties ? `${text}${fieldTable(schema)}` : text
}

const fieldRow = (name: string, schema: Schema, required: boolean, description = schema.description ?? ''): string =>
  `<tr><td><code>${escapeHtml(name)}</code>${required ? ' *' : ''}</td><td>${typeOf(schema)}</td><td>${escapeHtml(description)}</td></tr>`

function fieldTable({ properties = {}, required = [] }: Schema): string {
  const rows = Object.entries(properties).map(([name, field]) => fieldRow(name, field, required.includes(name)))
  return `<table>${rows.join('')}</table>`
}

const parameterRow = ({ name, in: place, required = false, style, schema, description }: Parameter): string =>
  fieldRow(`${name}${style === 'deepObject' ? '[key]' : ''} (${place})`, schema, required, description)

const contentOf = (content: Content = {}): string =>
  Object.entries(content)
    .map(([type, { schema }]) => `${escapeHtml(type)}: ${typeOf(schema)}`)
    .join('<br>')

/** Resolves a reference to a part of the document. */
function resolvePart<T extends object>(document: object, part: Shared<T>): T {
  if (!('$ref' in part)) return part
  const [, ...path] = part.$ref.split('/')
  return path.reduce<unknown>((node, key) => (node as Record<string, unknown>)[key], document) as T
}

/** Returns the API reference: parameters, body, responses and error codes of each operation. */
export function referencePage(operations: readonly Operation[]): string {
  const document = openApiDocument(operations, { DOCS_BASE_URL: '/docs' }, '')
  const paths = document.paths as Record<string, Record<string, Described>>
  const tags = [...new Set(operations.map(operation => operation.tag))]
  const sections = tags.map(tag => {
    const entries = operations
      .filter(operation => operation.tag === tag)
      .map(operation => {
        const { parameters, requestBody, responses } = paths[`/api/v1${operation.path}`][operation.method]
        const answers = Object.entries(responses).map(([status, shared]) => {
          const { description, content } = resolvePart(document, shared)
          const codes = refusalCodes(operation, Number(status))
          return `<tr><td>${status}</td><td>${codes.map(errorLink).join(', ') || contentOf(content) || escapeHtml(description)}</td></tr>`
        })
        const parts = [
          operation.description ? `<p>${escapeHtml(operation.description)}</p>` : '',
          operation.action ? `<p>Permission <code>${escapeHtml(operation.action)}</code></p>` : '',
          parameters
            ? `<p>Parameters</p><table>${parameters.map(each => parameterRow(resolvePart(document, each))).join('')}</table>`
            : '',
          requestBody
            ? `<p>Body${requestBody.required ? '' : ', optional'}</p><p>${contentOf(requestBody.content)}</p>`
            : '',
          `<p>Responses</p><table>${answers.join('')}</table>`,
        ]
        return entry(
          operation.id,
          `<span class="method">${operation.method.toUpperCase()}</span><code>/api/v1${escapeHtml(operation.path)}</code> ${escapeHtml(operation.summary)}`,
          parts.join(''),
        )
      })
    return `<h2>${escapeHtml(tag)}</h2>${entries.join('')}`
  })
  const { schemas } = document.components as { schemas: Record<string, Schema> }
  const sorted = Object.entries(schemas).sort(([a], [b]) => (a < b ? -1 : 1))
  const records = sorted.map(([name, schema]) =>
    entry(
      `schema-${name}`,
      `<code>${name}</code>`,
      schema.properties ? fieldTable(schema) : `<p>${typeOf(schema)}</p>`,
    ),
  )
  return page('API reference', `${sections.join('')}<h2>Records</h2><p>* required</p>${records.join('')}`)
}

/** Returns a collapsible entry. Its anchor is inside, so that a link to it opens the entry. */
const entry = (id: string, summary: string, body: string): string =>
  `<details><summary>${summary}</summary><div id="${id}">${body}</div></details>`

const errorLink = (code: string): string => `<a href="/docs/errors#${code}">${code}</a>`

/** Returns the error catalogue, with an anchor per code. */
export function errorPage(): string {
  const rows = errorCodes().map(code => {
    const { status, description, hint } = errorEntry(code)
    return `<tr id="${code}"><td><code>${code}</code></td><td>${status}</td><td>${escapeHtml(description)}</td><td>${escapeHtml(hint)}</td></tr>`
  })
  return page(
    'Error codes',
    `<p>Every error body is <code>{"error":{"code","message","hint","docs_url","meta"}}</code>. Codes are stable.</p><table><tr><th>Code</th><th>Status</th><th>Description</th><th>Hint</th></tr>${rows.join('')}</table>`,
  )
}

/** Returns the catalogue of actions for policies. */
export function permissionPage(operations: readonly Operation[]): string {
  const sections = actionCatalogue(operations).map(({ module, actions }) => {
    const rows = actions.map(
      entry =>
        `<tr><td><code>${escapeHtml(entry.action)}</code></td><td>${escapeHtml(entry.description)}</td><td>${entry.resource_type ?? ''}</td><td>${entry.gate}</td></tr>`,
    )
    return `<h2>${escapeHtml(module)}</h2><table><tr><th>Action</th><th>Description</th><th>Resource type</th><th>Gate</th></tr>${rows.join('')}</table>`
  })
  return page('Permissions', sections.join(''))
}
