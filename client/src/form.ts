import { randomKey } from './client.ts'

/** Bytes of a file. In Node, `openAsBlob` of `node:fs` gives a file without reading it into memory. */
export type FileInput = Blob | Uint8Array | ReadableStream<Uint8Array>

type Sent = { body: RequestInit['body']; headers?: Record<string, string>; isOneWay?: boolean }

const isStream = (value: unknown): value is ReadableStream<Uint8Array> =>
  typeof value === 'object' && value !== null && 'getReader' in value

const bytesOf = (file: Blob | Uint8Array): Blob =>
  file instanceof Blob ? file : new Blob([file as Uint8Array<ArrayBuffer>])

const fieldText = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value))

/** Returns a multipart form: the file last, after the fields that say where it belongs. A stream is sent as it arrives. */
export function formOf({ file, ...fields }: { file: FileInput; filename?: string; content_type?: string }): Sent {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined && value !== null)
  const name = fields.filename ?? (file instanceof Blob && 'name' in file ? String(file.name) : 'file')
  if (isStream(file)) return streamedForm(given, file, name)
  const form = new FormData()
  for (const [field, value] of given) form.append(field, fieldText(value))
  form.append('file', bytesOf(file), name)
  return { body: form }
}

const quoted = (text: string): string =>
  text.replace(/["\r\n]/g, found => `%${found.charCodeAt(0).toString(16).toUpperCase().padStart(2, '0')}`)

/** FormData takes no stream, so the parts are written here, as FormData writes them. */
function streamedForm(fields: [string, unknown][], file: ReadableStream<Uint8Array>, name: string): Sent {
  const boundary = `muster-${randomKey()}`
  const part = (disposition: string, text: string) =>
    `--${boundary}\r\nContent-Disposition: form-data; ${disposition}\r\n${text}`
  const head =
    fields.map(([field, value]) => part(`name="${quoted(field)}"`, `\r\n${fieldText(value)}\r\n`)).join('') +
    part(`name="file"; filename="${quoted(name)}"`, 'Content-Type: application/octet-stream\r\n\r\n')
  const encoder = new TextEncoder()
  const reader = file.getReader()
  const body = new ReadableStream<Uint8Array>({
    start: controller => controller.enqueue(encoder.encode(head)),
    async pull(controller) {
      const { done, value } = await reader.read()
      if (!done) return controller.enqueue(value)
      controller.enqueue(encoder.encode(`\r\n--${boundary}--\r\n`))
      controller.close()
    },
    cancel: reason => reader.cancel(reason),
  })
  return { body, headers: { 'content-type': `multipart/form-data; boundary=${boundary}` }, isOneWay: true }
}

/** Returns a body that is the file alone. */
export function rawBody({ file, content_type }: { file: FileInput; content_type?: string }): Sent {
  const headers: Record<string, string> = { 'content-type': content_type ?? 'application/octet-stream' }
  return isStream(file) ? { body: file, headers, isOneWay: true } : { body: bytesOf(file), headers }
}
