import { timingSafeEqual } from 'node:crypto'
import { promisify } from 'node:util'
import { brotliCompress, constants, gzip } from 'node:zlib'
import type { Express, NextFunction, Request, Response } from 'express'
import { etagOf } from '../api/etag.ts'
import type { Operation } from '../api/operation.ts'
import { AppError, errorBody, errorDocument, serviceNotReady } from '../base/errors.ts'
import { collectProcess, registry, reportPools, reportWaitingRows, setQueueDepthSource } from '../base/metrics.ts'
import type { Services } from '../base/services.ts'
import { poolUse } from '../db/pool.ts'
import { isReferenceBuilt } from '../docs/scalar.ts'
import type { DocsFile } from '../docs/site.ts'
import { migrationNames } from '../queues/breaking-migrations.ts'
import { sha256Of } from '../secrets/digest.ts'
import { readsOfCells } from '../services/cell-facts.ts'
import { waitingRowAges } from '../work/waiting-rows.ts'
import { deployedSite, descriptionText } from './documents.ts'
import { allHealthy, type Checks, readinessHandler } from './health.ts'
import { answersNotModified } from './not-modified.ts'
import { mountPackages } from './packages.ts'

/** A document, generated once and compressed once per requested encoding. */
type CachedDocument = {
  type: string
  policy?: string
  text: Buffer
  tag: string
  /** Level of brotli. */
  level: number
  compressed: Partial<Record<keyof typeof COMPRESS, Promise<Buffer>>>
}

/** For pages: 0.1 s for a megabyte. */
const BROTLI_LEVEL = 9

/** Compresses in the thread pool. */
const COMPRESS = {
  br: ({ text, level }: CachedDocument) =>
    promisify(brotliCompress)(text, {
      params: {
        [constants.BROTLI_PARAM_QUALITY]: level,
        [constants.BROTLI_PARAM_LGWIN]: constants.BROTLI_MAX_WINDOW_BITS,
        [constants.BROTLI_PARAM_SIZE_HINT]: text.length,
      },
    }),
  gzip: ({ text }: CachedDocument) => promisify(gzip)(text, { level: constants.Z_BEST_COMPRESSION }),
}

const migrations = migrationNames()

const cache = ({ type, text, policy }: DocsFile, level = BROTLI_LEVEL): CachedDocument => ({
  type,
  policy,
  text: typeof text === 'string' ? Buffer.from(text) : text,
  tag: etagOf(text),
  level,
  compressed: {},
})

async function send(req: Request, res: Response, document: CachedDocument): Promise<void> {
  res.setHeader('Cache-Control', 'max-age=60')
  if (answersNotModified(req, res, document.tag)) return
  res.setHeader('Content-Type', document.type)
  if (document.policy) res.setHeader('Content-Security-Policy', document.policy)
  // Pictures are compressed already.
  if (document.type.startsWith('image/')) return void res.end(document.text)
  res.setHeader('Vary', 'Accept-Encoding')
  const encoding = req.acceptsEncodings('br', 'gzip', 'identity')
  if (encoding !== 'br' && encoding !== 'gzip') return void res.end(document.text)
  document.compressed[encoding] ??= COMPRESS[encoding](document).catch(error => {
    document.compressed[encoding] = undefined
    throw error
  })
  res.setHeader('Content-Encoding', encoding)
  res.end(await document.compressed[encoding])
}

/** Mounts the endpoints outside /api/v1: documents, documentation, packages, health, metrics. */
export function mountDocuments(
  app: Express,
  services: Services,
  operations: readonly Operation[],
  state: { draining: () => boolean },
): void {
  const { config } = services
  // Clients read these documents as a whole: the highest level is a sixth smaller, and takes 3 s for the first request.
  const serve = (path: string, type: string, make: () => string | Promise<string>) => {
    let cached: CachedDocument | undefined
    app.get(path, async (req: Request, res: Response) => {
      cached ??= cache({ type, text: await make() }, constants.BROTLI_MAX_QUALITY)
      await send(req, res, cached)
    })
  }
  const description = () => descriptionText(config, operations)
  serve('/openapi.json', 'application/json; charset=utf-8', description)
  serve('/openapi.yaml', 'application/yaml; charset=utf-8', async () => {
    // Rarely requested: imported on demand to save memory.
    const { stringify } = await import('yaml')
    return stringify(JSON.parse(description()), { aliasDuplicateObjects: false })
  })
  serve('/errors.json', 'application/json; charset=utf-8', () => JSON.stringify(errorDocument(config.DOCS_BASE_URL)))
  mountDocs(app, services, operations)
  mountPackages(app)
  mountHealth(app, services, { draining: state.draining })
}

/** Mounts the documentation at /docs. Pages are rendered when they are first requested. */
function mountDocs(app: Express, { config, log }: Services, operations: readonly Operation[]): void {
  const files = new Map<string, CachedDocument>()
  if (config.DOCS_ENABLED && !isReferenceBuilt()) log.info({ hint: 'npm run build' }, 'interactive reference not built')
  // One route for all pages, since every request to the API passes the routes of its application.
  app.get(/^\/docs(?:\/(.*))?$/, async (req: Request, res: Response, next: NextFunction) => {
    const path = ((req.params[0] as string | undefined) ?? '').replace(/\/$/, '')
    let document = files.get(path)
    if (!document) {
      const file = (await deployedSite(config, operations)).file(path)
      if (!file) return next()
      document = cache(file)
      files.set(path, document)
    }
    await send(req, res, document)
  })
}

/** Mounts /healthz, /readyz and /metrics, for web and worker processes. `extra` adds checks. */
export function mountHealth(
  app: Express,
  services: Services,
  state: { draining: () => boolean; extra?: () => Checks },
): void {
  const { config } = services
  app.get('/healthz', (_req: Request, res: Response) => void res.json({ status: 'ok' }))
  app.get('/readyz', (_req: Request, res: Response) => {
    const respond = (checks: Checks) => {
      if (allHealthy(checks)) return void res.json({ status: 'ok', checks })
      const error = serviceNotReady(checks)
      res.status(error.status).json(errorBody(error, config.DOCS_BASE_URL))
    }
    if (state.draining()) return respond({ process: 'shutting down' })
    void readinessHandler(services, migrations).then(checks => respond({ ...checks, ...state.extra?.() }))
  })
  mountMetrics(app, services)
}

/** Compares two texts in constant time. */
const equalsSecret = (left: string, right: string): boolean => timingSafeEqual(sha256Of(left), sha256Of(right))

/** Mounts GET /metrics: requires METRICS_TOKEN as bearer, or a loopback address if it is not set. */
function mountMetrics(app: Express, services: Services): void {
  const { config } = services
  collectProcess()
  setQueueDepthSource(() => readsOfCells(services, ({ queues }) => queues.stats()))
  reportWaitingRows(() => readsOfCells(services, ({ pool }) => waitingRowAges(pool)))
  reportPools(() => {
    const cells = services.cells?.served() ?? [{ name: undefined, services }]
    const replica = services.replica?.use()
    return [
      ...cells.flatMap(({ name: cell, services: of }) => (of ? { ...poolUse(of.pool), cell } : [])),
      ...(replica ? [{ ...replica, database: 'replica' as const }] : []),
    ]
  })
  app.get('/metrics', (req: Request, res: Response) => {
    const local = ['127.0.0.1', '::1', '::ffff:127.0.0.1'].includes(req.socket.remoteAddress ?? '')
    const permitted = config.METRICS_TOKEN
      ? equalsSecret(/^bearer +([^ ].*)?$/i.exec(req.headers.authorization ?? '')?.[1] ?? '', config.METRICS_TOKEN)
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
        services.log.error({ err: error }, 'metrics collection failed')
        res.status(500).json(errorBody(new AppError('INTERNAL_ERROR'), config.DOCS_BASE_URL))
      },
    )
  })
}
