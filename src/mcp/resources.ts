import type { Readable } from 'node:stream'
import { z } from 'zod'
import { extensionPoint } from '#core/base/declarations.ts'
import { AppError } from '#core/base/errors.ts'
import { invokeInSession } from './invoke.ts'
import { INVALID_PARAMS, invalidParams, type McpClientSession, type PendingAnswer, RpcError } from './session.ts'

/** Files and documents as resources. */

type Json = Record<string, unknown>
type ListedResource = { id: string; created_at: string; resource: Json }

/** Resources of one kind. */
export type ResourceSource = {
  /** Returns a page of the resources that the caller may read, newest first; empty if the list is refused. */
  list(
    session: McpClientSession,
    page: { offset: number; limit: number; signal: AbortSignal },
  ): Promise<readonly ListedResource[]>
  templates: readonly Json[]
  /** Returns the contents of a URI; null if it belongs to another source or the caller may not read it. */
  read(session: McpClientSession, uri: string, signal: AbortSignal): Promise<Json | null>
}

export const resourcePoint = extensionPoint<ResourceSource>({
  name: 'resources of MCP',
  folder: 'mcp',
  description: 'Lists and reads the resources of one kind',
})

const PAGE = 200
/** Maximum page size of the API. */
const API_PAGE = 100

const Cursor = z.array(z.int().min(0))

function offsetsIn(cursor: unknown, sources: number): number[] {
  if (cursor === undefined) return Array(sources).fill(0)
  try {
    const text = Buffer.from(z.string().max(1000).parse(cursor), 'base64url').toString()
    return Cursor.length(sources).parse(JSON.parse(text))
  } catch {
    return invalidParams('Cursor is invalid for this list')
  }
}

/** Handles `resources/list`: merges the sources, newest first. */
export async function listMcpResources(session: McpClientSession, { params, signal }: PendingAnswer): Promise<object> {
  const sources = resourcePoint.all()
  const offsets = offsetsIn(params.cursor, sources.length)
  const pages = await Promise.all(
    sources.map((source, index) => source.list(session, { offset: offsets[index], limit: PAGE + 1, signal })),
  )
  const merged = pages
    .flatMap((page, index) => page.map(each => ({ ...each, index })))
    .sort((a, b) => (a.created_at === b.created_at ? (a.id < b.id ? 1 : -1) : a.created_at < b.created_at ? 1 : -1))
  const page = merged.slice(0, PAGE)
  const next = offsets.map((offset, index) => offset + page.filter(each => each.index === index).length)
  return {
    resources: page.map(({ resource }) => resource),
    ...(merged.length > PAGE ? { nextCursor: Buffer.from(JSON.stringify(next)).toString('base64url') } : {}),
    ttlMs: 10_000,
    cacheScope: 'private',
  }
}

/** Handles `resources/templates/list`. */
export const listTemplates = async (): Promise<object> => ({
  resourceTemplates: resourcePoint.all().flatMap(({ templates }) => templates),
  ttlMs: 300_000,
  cacheScope: 'public',
})

/** Handles `resources/read`. Missing and forbidden resources give the same error. */
export async function readMcpResource(session: McpClientSession, { params, signal }: PendingAnswer): Promise<object> {
  const { uri } = params
  if (typeof uri !== 'string') return invalidParams('uri must be a string')
  session.exchange.noted.uri = uri.slice(0, 200)
  for (const source of resourcePoint.all()) {
    const contents = await source.read(session, uri, signal)
    if (contents) return { contents: [{ uri, ...contents }], ttlMs: 0, cacheScope: 'private' }
  }
  throw new RpcError(session.modern ? INVALID_PARAMS : -32002, 'Resource not found', { uri: uri.slice(0, 2048) })
}

/** Returns entries of an API list; empty if the list is refused. */
async function listEntries(
  session: McpClientSession,
  list: string,
  { offset, limit, signal }: { offset: number; limit: number; signal: AbortSignal },
): Promise<Json[]> {
  const found: Json[] = []
  const { project } = session.view
  try {
    for (let at = offset; found.length < limit; at += API_PAGE) {
      const args = {
        limit: Math.min(API_PAGE, limit - found.length),
        offset: at,
        ...(project && { project_id: project }),
      }
      const { body } = await invokeInSession(session, list, args, { signal })
      const { data } = body as { data: Json[] }
      found.push(...data)
      if (data.length < args.limit) break
    }
  } catch (error) {
    if (!isRefusal(error)) throw error
  }
  return found
}

/** Whether a row is missing or forbidden. */
const isRefusal = (error: unknown): boolean =>
  error instanceof AppError && error.status >= 400 && error.status < 500 && error.status !== 429

const nullIfRefused = (error: unknown): null => {
  if (isRefusal(error)) return null
  throw error
}

const idIn = (uri: string, kind: string): string | null => {
  const [, id] = new RegExp(`^svc://${kind}/([A-Za-z0-9_]+)$`).exec(uri) ?? []
  return id ?? null
}

const TEXT =
  /^(text\/|application\/(json|xml|yaml|javascript|x-ndjson)|image\/svg\+xml|[\w.+-]+\/[\w.+-]+\+(json|xml))/i

function tooLarge({ services }: McpClientSession, id: string): never {
  const { MCP_RESOURCE_MAX_BYTES: most } = services.config
  return invalidParams(`Content exceeds ${most} bytes; download it with GET /api/v1/files/${id}/download`)
}

async function bytesOf(session: McpClientSession, stream: Readable, id: string): Promise<Buffer> {
  const pieces: Buffer[] = []
  let length = 0
  for await (const piece of stream) {
    length += (piece as Buffer).length
    if (length > session.services.config.MCP_RESOURCE_MAX_BYTES) return tooLarge(session, id)
    pieces.push(piece as Buffer)
  }
  return Buffer.concat(pieces)
}

export const fileResources: ResourceSource = {
  async list(session, page) {
    const rows = await listEntries(session, 'listFiles', page)
    return rows.map(({ id, created_at, filename, path, content_type, size }) => ({
      id: id as string,
      created_at: created_at as string,
      resource: {
        uri: `svc://file/${id}`,
        name: filename,
        title: path ?? filename,
        ...(content_type ? { mimeType: content_type } : {}),
        ...(typeof size === 'number' ? { size } : {}),
      },
    }))
  },
  templates: [{ uriTemplate: 'svc://file/{id}', name: 'file', title: 'Content of a file', description: 'File by ID' }],
  async read(session, uri, signal) {
    const id = idIn(uri, 'file')
    if (id === null) return null
    const answer = await invokeInSession(session, 'downloadFile', { file_id: id }, { signal }).catch(nullIfRefused)
    if (!answer?.stream) return null
    const mimeType = answer.contentType ?? 'application/octet-stream'
    const bytes = await bytesOf(session, answer.stream, id)
    return TEXT.test(mimeType)
      ? { mimeType, text: bytes.toString('utf8') }
      : { mimeType, blob: bytes.toString('base64') }
  },
}

export const documentResources: ResourceSource = {
  async list(session, page) {
    const rows = await listEntries(session, 'listDocuments', page)
    return rows.map(({ id, created_at, title, path }) => ({
      id: id as string,
      created_at: created_at as string,
      resource: {
        uri: `svc://document/${id}`,
        name: path ?? id,
        ...(title ? { title } : {}),
        mimeType: 'text/plain',
      },
    }))
  },
  templates: [
    {
      uriTemplate: 'svc://document/{id}',
      name: 'document',
      title: 'Text of a document',
      description: 'Document by ID',
    },
  ],
  async read(session, uri, signal) {
    const id = idIn(uri, 'document')
    if (id === null) return null
    const answer = await invokeInSession(session, 'getDocument', { document_id: id }, { signal }).catch(nullIfRefused)
    if (!answer) return null
    const text = String((answer.body as Json).content ?? '')
    if (Buffer.byteLength(text) > session.services.config.MCP_RESOURCE_MAX_BYTES) return tooLarge(session, id)
    return { mimeType: 'text/plain', text }
  },
}
