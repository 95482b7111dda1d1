import { createHash, timingSafeEqual } from 'node:crypto'
import { readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { Express, Request, Response } from 'express'
import { stringify } from 'yaml'
import { actionCatalogue } from './catalogue.ts'
import { AppError, errorBody, errorCodes, errorDocument, errorEntry } from './errors.ts'
import { etagOf, namesTag } from './etag.ts'
import { allOk, type Checks, readiness } from './health.ts'
import { registry, reportQueues } from './metrics.ts'
import { openApiDocument } from './openapi.ts'
import type { Operation, Services } from './operation.ts'

export const migrationCount = readdirSync(fileURLToPath(new URL('../../sql', import.meta.url))).filter(name =>
  name.endsWith('.sql'),
).length

/** Mounts what is served outside /api/v1: descriptions, reference pages, health, metrics (control, 9). */
export function mountDocuments(
  app: Express,
  services: Services,
  operations: readonly Operation[],
  state: { draining: () => boolean; version: string },
): void {
  const { config } = services
  const serve = (path: string, type: string, make: () => string) => {
    let made: { text: string; tag: string } | undefined
    app.get(path, (req: Request, res: Response) => {
      if (!made) {
        const text = make()
        made = { text, tag: etagOf(text) }
      }
      res.setHeader('ETag', made.tag)
      res.setHeader('Cache-Control', 'max-age=60')
      const known = req.headers['if-none-match']
      if (known !== undefined && namesTag(known, made.tag)) return void res.status(304).end()
      res.setHeader('Content-Type', type)
      if (type.startsWith('text/html'))
        res.setHeader(
          'Content-Security-Policy',
          "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
        )
      res.end(made.text)
    })
  }
  const description = () => openApiDocument(operations, config, state.version)
  serve('/openapi.json', 'application/json; charset=utf-8', () => JSON.stringify(description()))
  serve('/openapi.yaml', 'application/yaml; charset=utf-8', () =>
    stringify(description(), { aliasDuplicateObjects: false }),
  )
  serve('/errors.json', 'application/json; charset=utf-8', () => JSON.stringify(errorDocument(config.DOCS_BASE_URL)))
  serve('/docs', 'text/html; charset=utf-8', () => referencePage(operations))
  serve('/docs/errors', 'text/html; charset=utf-8', errorPage)
  serve('/docs/permissions', 'text/html; charset=utf-8', () => permissionPage(operations))

  mountHealth(app, services, { draining: state.draining })
}

/** Mounts /healthz, /readyz and /metrics: what a web process and a worker have in common. `extra` adds checks. */
export function mountHealth(
  app: Express,
  services: Services,
  state: { draining: () => boolean; extra?: () => Checks },
): void {
  const { config } = services
  app.get('/healthz', (_req: Request, res: Response) => void res.json({ status: 'ok' }))
  app.get('/readyz', (_req: Request, res: Response) => {
    const ready = (checks: Checks) => {
      if (allOk(checks)) return void res.json({ status: 'ok', checks })
      const error = new AppError('SERVICE_NOT_READY', { meta: { checks } })
      res.status(error.status).json(errorBody(error, config.DOCS_BASE_URL))
    }
    if (state.draining()) return ready({ process: 'shutting down' })
    void readiness(services, migrationCount).then(checks => ready({ ...checks, ...state.extra?.() }))
  })
  mountMetrics(app, services)
}

/** Compares in a time that does not depend on where two texts differ. */
const same = (left: string, right: string): boolean => {
  const [a, b] = [left, right].map(text => createHash('sha256').update(text).digest())
  return timingSafeEqual(a, b)
}

/** GET /metrics: with METRICS_TOKEN its bearer only, without it loopback only. */
function mountMetrics(app: Express, services: Services): void {
  const { config } = services
  reportQueues(() => services.queues.stats())
  app.get('/metrics', (req: Request, res: Response) => {
    const local = ['127.0.0.1', '::1', '::ffff:127.0.0.1'].includes(req.socket.remoteAddress ?? '')
    const permitted = config.METRICS_TOKEN
      ? same(/^bearer +(.*)$/i.exec(req.headers.authorization ?? '')?.[1] ?? '', config.METRICS_TOKEN)
      : local && !req.headers['x-forwarded-for'] && !req.headers.forwarded
    if (!permitted) {
      const error = new AppError('UNAUTHORIZED')
      res.setHeader('WWW-Authenticate', 'Bearer')
      res.status(401).json(errorBody(error, config.DOCS_BASE_URL))
      return
    }
    registry.metrics().then(
      text => {
        res.setHeader('Content-Type', registry.contentType)
        res.end(text)
      },
      error => {
        services.log.error({ err: error }, 'metrics not collected')
        res.status(500).json(errorBody(new AppError('INTERNAL_ERROR'), config.DOCS_BASE_URL))
      },
    )
  })
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

/** One entry an operation, with the schemas of what goes in and comes out. */
function referencePage(operations: readonly Operation[]): string {
  const document = openApiDocument(operations, { DOCS_BASE_URL: '/docs' }, '')
  const paths = document.paths as Record<string, Record<string, Record<string, unknown>>>
  const tags = [...new Set(operations.map(operation => operation.tag))]
  const show = (value: unknown) => `<pre>${escapeHtml(JSON.stringify(value, null, 2))}</pre>`
  const sections = tags.map(tag => {
    const entries = operations
      .filter(operation => operation.tag === tag)
      .map(operation => {
        const described = paths[`/api/v1${operation.path}`][operation.method]
        const parts = [
          `<p>${escapeHtml(operation.description ?? operation.summary)}</p>`,
          operation.action ? `<p>Permission <code>${escapeHtml(operation.action)}</code></p>` : '',
          described.parameters ? `<p>Parameters</p>${show(described.parameters)}` : '',
          described.requestBody ? `<p>Body</p>${show(described.requestBody)}` : '',
          `<p>Answers</p>${show(described.responses)}`,
        ]
        return `<details id="${operation.id}"><summary><span class="method">${operation.method.toUpperCase()}</span><code>/api/v1${escapeHtml(operation.path)}</code> ${escapeHtml(operation.summary)}</summary>${parts.join('')}</details>`
      })
    return `<h2>${escapeHtml(tag)}</h2>${entries.join('')}`
  })
  const components = (document.components as { schemas: Record<string, unknown> }).schemas
  const records = Object.entries(components).map(
    ([name, schema]) =>
      `<details id="schema-${escapeHtml(name)}"><summary><code>${escapeHtml(name)}</code></summary>${show(schema)}</details>`,
  )
  return page('API reference', `${sections.join('')}<h2>Records</h2>${records.join('')}`)
}

function errorPage(): string {
  const rows = errorCodes.map(code => {
    const { status, description, hint } = errorEntry(code)
    return `<tr id="${code}"><td><code>${code}</code></td><td>${status}</td><td>${escapeHtml(description)}</td><td>${escapeHtml(hint)}</td></tr>`
  })
  return page(
    'Error codes',
    `<p>Every error body is <code>{"error":{"code","message","hint","docs_url","meta"}}</code>. Codes are stable.</p><table><tr><th>Code</th><th>Status</th><th>When</th><th>What to do</th></tr>${rows.join('')}</table>`,
  )
}

function permissionPage(operations: readonly Operation[]): string {
  const sections = actionCatalogue(operations).map(({ module, actions }) => {
    const rows = actions.map(
      entry =>
        `<tr><td><code>${escapeHtml(entry.action)}</code></td><td>${escapeHtml(entry.description)}</td><td>${entry.resource_type ?? ''}</td><td>${entry.gate}</td></tr>`,
    )
    return `<h2>${escapeHtml(module)}</h2><table><tr><th>Action</th><th>Guards</th><th>Resource type</th><th>Gate</th></tr>${rows.join('')}</table>`
  })
  return page('Permissions', sections.join(''))
}
