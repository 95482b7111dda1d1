import { encodeExtended, format } from 'content-disposition'
import rangeParser from 'range-parser'
import type { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { namesTag } from '../../core/api/etag.ts'
import { type Answer, answer, type Context, streamed } from '../../core/api/operation.ts'
import type { Services } from '../../core/process/services.ts'
import { signToken, verifyToken } from '../../identity/tokens.ts'
import type { ByteRange } from '../storage/storage.ts'
import { fileBytes, openFile, rowSince } from './bytes.ts'
import { type FileContent, type FileRow, fileKind } from './model.ts'

const TYPE = 'application/octet-stream'

/** An address that anybody may download one file from, for FILE_DOWNLOAD_TOKEN_TTL_SECONDS (content, 2.3 rule 9). */
export async function downloadUrl(services: Services, fileId: string): Promise<string> {
  const { config } = services
  const { token } = await signToken(services, 'download', fileId, {}, config.FILE_DOWNLOAD_TOKEN_TTL_SECONDS)
  return `${config.BASE_URL}/api/v1/files/${fileId}/download?token=${token}`
}

/** Whether a token in the query is one for this file. */
export async function holdsDownloadToken(services: Services, fileId: string, token: unknown): Promise<boolean> {
  return typeof token === 'string' && (await verifyToken(services, 'download', token))?.sub === fileId
}

/**
 * The one range that a request asks for; null for all bytes. A range that cannot be read, and several at once, are as if
 * none was asked for. Raises REQUEST_REJECTED 416 for one beyond the end.
 */
function rangeOf(header: string | undefined, size: number): ByteRange | null {
  if (header === undefined || header.includes(',')) return null
  // More last bytes than there are: all of them (RFC 9110, 14.1.2).
  const suffix = /^bytes=\s*-\s*(\d+)\s*$/.exec(header)
  const ranges = rangeParser(size, suffix ? `bytes=-${Math.min(Number(suffix[1]), size)}` : header)
  if (ranges === -2) return null
  if (ranges === -1)
    return raise('REQUEST_REJECTED', {
      status: 416,
      message: `The file has ${size} bytes`,
      headers: { 'Content-Range': `bytes */${size}` },
    })
  return ranges.type === 'bytes' ? ranges[0] : null
}

/** The header that names a download: in ASCII for old clients, and as it is (RFC 8187). */
const attachment = (filename: string): string =>
  format({
    type: 'attachment',
    parameters: { filename: filename.replaceAll(/[^\x20-\x7e]/g, '?'), 'filename*': encodeExtended(filename) },
  })

/** Answers the bytes of a file, some of them, or that the client has them (content, 2.3 rule 8 and 2.6). */
export async function download({
  resource: file,
  services,
  request,
}: Pick<Context<unknown, unknown, FileRow>, 'resource' | 'services' | 'request'>): Promise<Answer> {
  const size = file.size ?? 0
  if (file.storage === null)
    return raise(fileKind.notFound, { message: 'The file has no content', meta: { id: file.id } })
  const tag = `"${file.sha256}"`
  const headers: Record<string, string> = {
    ETag: tag,
    'Accept-Ranges': 'bytes',
    'Cache-Control': 'private, no-store',
    'Content-Disposition': attachment(file.filename),
    'X-Content-Type-Options': 'nosniff',
  }
  const { 'if-none-match': known, 'if-range': unlessChanged, range: asked } = request.headers
  if (known !== undefined && namesTag(known, tag)) return answer(304, undefined, headers)
  const range = unlessChanged === undefined || unlessChanged === tag ? rangeOf(asked, size) : null
  const stream = await openFile(services, file, range ?? undefined)
  if (!stream) {
    const now = await rowSince(services, file)
    if (now) return download({ resource: now, services, request })
    return raise(fileKind.notFound, { message: 'The content of the file is lost', meta: { id: file.id } })
  }
  const type = file.content_type ?? TYPE
  if (!range) return streamed(type, stream, { ...headers, 'Content-Length': String(size) })
  return streamed(
    type,
    stream,
    {
      ...headers,
      'Content-Length': String(range.end + 1 - range.start),
      'Content-Range': `bytes ${range.start}-${range.end}/${size}`,
    },
    206,
  )
}

/** The bytes of a file in base64, with what they are. Raises REQUEST_REJECTED 413 above FILES_INLINE_MAX_BYTES. */
export async function downloadBase64(services: Services, file: FileRow): Promise<z.output<typeof FileContent>> {
  const bytes = await fileBytes(services, file, services.config.FILES_INLINE_MAX_BYTES)
  if (!bytes) {
    const now = await rowSince(services, file)
    if (now) return downloadBase64(services, now)
    return raise(fileKind.notFound, { message: 'The file has no content', meta: { id: file.id } })
  }
  const { filename, content_type } = file
  return { content: bytes.toString('base64'), filename, content_type, size: bytes.length }
}
