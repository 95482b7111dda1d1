import { randomBytes } from 'node:crypto'
import { fileURLToPath } from 'node:url'
import { type Express, type NextFunction, type Request, type Response, Router } from 'express'
import { AppError } from '#core/base/errors.ts'
import { release } from '#core/base/release.ts'
import type { Services } from '#core/base/services.ts'
import { answersNotModified } from '#core/http/not-modified.ts'
import { isEnabled as isCompanySignInEnabled } from '../company-sign-in/provider.ts'
import { hasUsers } from '../users/store.ts'
import { type Asset, readConsole } from './assets.ts'

/** The console at `/app`: one page for all addresses, assets named by their content, and the settings of the page. */

const DIST = fileURLToPath(new URL('../../../console/dist', import.meta.url))

/** Time for which a process keeps whether a user exists. */
const KEPT_MS = 10_000

const HINT = 'Run npm run build, then restart the web process.'

/**
 * Headers of all answers below /app. The styles that the component library writes carry the nonce; the page's only
 * Trusted Types policy admits text without markup.
 */
const headersOf = (nonce: string): Record<string, string> => ({
  'Content-Security-Policy': [
    "default-src 'none'",
    "script-src 'self'",
    `style-src 'self' 'nonce-${nonce}'`,
    "img-src 'self' data: blob:",
    "font-src 'self'",
    "connect-src 'self'",
    "worker-src 'self'",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "require-trusted-types-for 'script'",
    'trusted-types default',
  ].join('; '),
  'X-Frame-Options': 'DENY',
  'Referrer-Policy': 'no-referrer',
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Permissions-Policy': '',
})

/** Mounts the console, unless CONSOLE_ENABLED is false. A deployment that did not build it answers 404 with a hint. */
export function mountConsole(app: Express, services: Services, directory = DIST): void {
  const { config, log } = services
  if (!config.CONSOLE_ENABLED) return
  const built = readConsole(directory)
  if (!built) log.warn({ hint: HINT }, 'the console is not built')
  const router = Router({ caseSensitive: true })
  const isBootstrapOpen = keep(KEPT_MS, async () => !(await hasUsers(services.pool)))

  router.use((_req: Request, res: Response, next: NextFunction) => {
    for (const name of ['Access-Control-Allow-Origin', 'Access-Control-Expose-Headers', 'Vary']) res.removeHeader(name)
    next()
  })

  router.get('/config.json', async (_req: Request, res: Response) => {
    const bootstrap_open = await isBootstrapOpen()
    res.setHeader('Cache-Control', 'no-store')
    res.json({
      version: release,
      base_url: config.BASE_URL,
      docs_url: config.DOCS_BASE_URL,
      header_prefix: config.HEADER_PREFIX,
      oidc: isCompanySignInEnabled(config),
      bootstrap_open,
      idle_minutes: config.CONSOLE_IDLE_MINUTES,
    })
  })

  router.get('/assets/*name', (req: Request, res: Response) => {
    const asset = built?.assets.get(req.path)
    if (!asset) throw new AppError('RESOURCE_NOT_FOUND', { message: `No file ${req.baseUrl}${req.path}` })
    sendAsset(asset, req, res)
  })

  router.get('/{*path}', (req: Request, res: Response) => {
    // A request for JSON gets the error.
    const isPage = req.accepts(['html', 'json']) === 'html'
    if (!isPage || !built)
      throw new AppError('RESOURCE_NOT_FOUND', {
        message: built ? `No route GET ${req.baseUrl}${req.path}` : `The console is not built. ${HINT}`,
      })
    const nonce = randomBytes(16).toString('base64url')
    res.set(headersOf(nonce))
    res.setHeader('Cache-Control', 'no-store')
    res.setHeader('Content-Type', 'text/html; charset=utf-8')
    res.end(built.page.join(nonce))
  })

  app.use('/app', router)
}

function sendAsset({ type, tag, bodies }: Asset, req: Request, res: Response): void {
  res.set(headersOf('none'))
  res.setHeader('Content-Type', type)
  res.setHeader('Cache-Control', 'public, max-age=31536000, immutable')
  res.setHeader('Vary', 'Accept-Encoding')
  if (answersNotModified(req, res, tag)) return
  const accepted = req.acceptsEncodings('br', 'gzip', 'identity')
  const encoding = accepted === 'br' || accepted === 'gzip' ? accepted : null
  const body = encoding && bodies[encoding]
  if (body) res.setHeader('Content-Encoding', encoding)
  const sent = body || bodies.identity
  res.setHeader('Content-Length', sent.length)
  res.end(sent)
}

/** Returns a function that reads a value at most once in `ms`. */
function keep<T>(ms: number, read: () => Promise<T>): () => Promise<T> {
  let kept: { value: Promise<T>; until: number } | undefined
  return () => {
    if (kept && kept.until > Date.now()) return kept.value
    const value = read()
    kept = { value, until: Date.now() + ms }
    value.catch(() => {
      kept = undefined
    })
    return value
  }
}
