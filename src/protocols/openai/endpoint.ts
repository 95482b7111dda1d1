import type { Services } from '#core/base/services.ts'
import { anonymousBodyError, rejectBody } from '#core/http/body.ts'
import { type MountExchange, serviceHeader } from '#core/http/mounts.ts'
import { httpLayerError } from '#core/http/responses.ts'
import { createChatCompletion, createTextCompletion } from './chat-completions.ts'
import { createEmbeddings } from './embeddings.ts'
import { openAiError, UnknownRouteError } from './error-body.ts'
import { deleteFile, downloadFile, getFile, listFiles, uploadFile } from './files.ts'
import { findModel, listModels, presentModel } from './models.ts'
import { sendJson } from './response.ts'
import { cancelResponse, createResponse, deleteResponse, getResponse, listInputItems } from './responses.ts'
import { isEndUser, type OpenAiSession } from './session.ts'

const BASE = '/openai/v1'

type Handler = (session: OpenAiSession, match: RegExpExecArray) => Promise<void>
type Route = { method: string; path: RegExp; handle: Handler }

const routes: Route[] = [
  {
    method: 'GET',
    path: /^\/models$/,
    handle: async session => sendJson(session, { object: 'list', data: (await listModels(session)).map(presentModel) }),
  },
  {
    method: 'GET',
    path: /^\/models\/(.+)$/,
    handle: async (session, [, id]) => sendJson(session, await findModel(session, id)),
  },
  { method: 'POST', path: /^\/chat\/completions$/, handle: createChatCompletion },
  { method: 'POST', path: /^\/completions$/, handle: createTextCompletion },
  { method: 'POST', path: /^\/responses$/, handle: createResponse },
  { method: 'GET', path: /^\/responses\/([^/]+)$/, handle: getResponse },
  { method: 'DELETE', path: /^\/responses\/([^/]+)$/, handle: deleteResponse },
  { method: 'POST', path: /^\/responses\/([^/]+)\/cancel$/, handle: cancelResponse },
  { method: 'GET', path: /^\/responses\/([^/]+)\/input_items$/, handle: listInputItems },
  { method: 'POST', path: /^\/embeddings$/, handle: createEmbeddings },
  { method: 'POST', path: /^\/files$/, handle: uploadFile },
  { method: 'GET', path: /^\/files$/, handle: listFiles },
  { method: 'GET', path: /^\/files\/([^/]+)$/, handle: getFile },
  { method: 'DELETE', path: /^\/files\/([^/]+)$/, handle: deleteFile },
  { method: 'GET', path: /^\/files\/([^/]+)\/content$/, handle: downloadFile },
]

/** Returns the path below the mount, decoded. */
function routeOf(path: string): string {
  try {
    return decodeURIComponent(path.slice(BASE.length)).replace(/\/$/, '')
  } catch {
    return ''
  }
}

/** Handles one request of the mount. */
export async function serveOpenAi(services: Services, exchange: MountExchange): Promise<void> {
  const { req } = exchange
  let hidesDetails = false
  try {
    if (!services.config.OPENAI_MOUNT) throw new UnknownRouteError(req)
    const session = await openSession(services, exchange)
    hidesDetails = isEndUser(session)
    const path = routeOf(req.path)
    for (const route of routes) {
      const match = route.method === req.method ? route.path.exec(path) : null
      if (match) return await route.handle(session, match)
    }
    throw new UnknownRouteError(req, [...new Set(routes.flatMap(each => (each.path.test(path) ? each.method : [])))])
  } catch (error) {
    sendError(services, exchange, error, hidesDetails)
  }
}

/**
 * Authenticates the caller and counts the request of a key of a project. The call counts the request of another key, in the
 * project where it works: a project that a header names may be any.
 * @throws UNAUTHORIZED, QUOTA_EXCEEDED
 */
async function openSession(services: Services, exchange: MountExchange): Promise<OpenAiSession> {
  const caller = await exchange.identify()
  if (!caller) throw anonymousBodyError(exchange.req)
  const project = caller.project_id ?? serviceHeader({ services, exchange }, 'Project') ?? null
  return { services, exchange, caller, project }
}

function sendError(services: Services, exchange: MountExchange, error: unknown, hidesDetails: boolean): void {
  const { config, log } = services
  const { req, res, request } = exchange
  const refusal = httpLayerError(error)
  if (refusal.code === 'INTERNAL_ERROR' && config.ERROR_LOGS_ENABLED)
    log.error({ request_id: request.id, err: refusal.cause ?? error }, 'request failed')
  if (res.headersSent) return void res.destroy()
  const { status, headers, body } = openAiError(refusal, config.DOCS_BASE_URL, hidesDetails)
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value)
  if (status === 401 && !res.hasHeader('WWW-Authenticate')) res.setHeader('WWW-Authenticate', 'Bearer')
  rejectBody(req, res)
  exchange.end(status, JSON.stringify(body))
}
