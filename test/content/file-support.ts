import { request as httpRequest, type IncomingMessage } from 'node:http'
import type { Client, Reply } from '../support/app.ts'

/** Bytes of a file and the fields of its part; undefined fields are not sent. */
export type Part = { bytes: Uint8Array | string; name?: string; type?: string; field?: string }

const parsed = async (response: Response): Promise<Reply> => {
  const text = await response.text()
  const json = response.headers.get('content-type')?.startsWith('application/json')
  return { status: response.status, body: text && json ? JSON.parse(text) : text, headers: response.headers }
}

/** A form of fields and files, in the order they are given. */
export function formOf(parts: (Part | [string, string])[]): FormData {
  const form = new FormData()
  for (const part of parts) {
    if (Array.isArray(part)) form.append(part[0], part[1])
    else
      form.append(part.field ?? 'file', new Blob([part.bytes as never], { type: part.type }), part.name ?? 'file.bin')
  }
  return form
}

/** Sends a form; `path` is below /api/v1. */
export async function sendForm(
  url: string,
  token: string | null,
  path: string,
  form: FormData,
  options: { headers?: Record<string, string>; method?: string } = {},
): Promise<Reply> {
  const headers = { ...(token ? { authorization: `Bearer ${token}` } : {}), ...options.headers }
  return parsed(await fetch(`${url}/api/v1${path}`, { method: options.method ?? 'POST', body: form, headers }))
}

/** Uploads one file; the fields come before it. */
export const upload = (url: string, caller: Client, part: Part, fields: Record<string, string> = {}): Promise<Reply> =>
  sendForm(url, caller.token, '/files/upload', formOf([...Object.entries(fields), part]))

/** The bytes of a download, with its status and headers. */
export async function download(
  url: string,
  token: string | null,
  id: string,
  headers: Record<string, string> = {},
  query = '',
): Promise<{ status: number; headers: Headers; bytes: Buffer }> {
  const response = await fetch(`${url}/api/v1/files/${id}/download${query}`, {
    headers: { ...(token ? { authorization: `Bearer ${token}` } : {}), ...headers },
  })
  return { status: response.status, headers: response.headers, bytes: Buffer.from(await response.arrayBuffer()) }
}

/** Sends a body unchanged, piece by piece; `after` is the action of the sender once the pieces are out. */
export function sendRaw(
  url: string,
  options: {
    method?: string
    path: string
    token?: string | null
    headers?: Record<string, string>
    pieces: Iterable<Buffer | string> | AsyncIterable<Buffer | string>
    /** After the pieces: the end, the end of the connection, or nothing until the answer. */
    after?: 'end' | 'destroy' | 'nothing'
  },
): Promise<{ status: number; body: any; headers: IncomingMessage['headers'] } | { error: Error }> {
  const { hostname, port } = new URL(url)
  return new Promise(resolve => {
    const request = httpRequest({
      hostname,
      port,
      method: options.method ?? 'POST',
      path: `/api/v1${options.path}`,
      headers: { ...(options.token ? { authorization: `Bearer ${options.token}` } : {}), ...options.headers },
    })
    request.on('error', error => resolve({ error }))
    request.on('response', async response => {
      let text = ''
      for await (const piece of response) text += piece
      resolve({ status: response.statusCode as number, body: text && JSON.parse(text), headers: response.headers })
      if (options.after === 'nothing') request.destroy()
    })
    const closed = new Promise(done => request.once('close', done))
    void (async () => {
      for await (const piece of options.pieces) {
        if (request.destroyed) return
        if (!request.write(piece)) await Promise.race([new Promise(done => request.once('drain', done)), closed])
      }
      if (options.after === 'destroy') {
        await new Promise(done => setTimeout(done, 100))
        request.destroy(new Error('gone'))
      } else if (options.after !== 'nothing') request.end()
    })()
  })
}

/** The head and the tail of a form whose file is sent manually. */
export const handmade = (boundary: string, name = 'file.bin') => ({
  head: `--${boundary}\r\nContent-Disposition: form-data; name="file"; filename="${name}"\r\nContent-Type: application/octet-stream\r\n\r\n`,
  tail: `\r\n--${boundary}--\r\n`,
  type: `multipart/form-data; boundary=${boundary}`,
})
