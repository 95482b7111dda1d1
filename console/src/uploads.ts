import { Client } from '@muster/client'
import { ingestDocument, uploadFile } from '@muster/client/operations'
import { type QueryClient, useQuery, useQueryClient } from '@tanstack/react-query'
import { api } from './api.ts'
import { confirmUnload } from './leaving.ts'
import { accessToken } from './session/tokens.ts'

/** Uploads that are sent concurrently; the others wait. */
const CONCURRENT = 2
const UPLOAD_MS = 60 * 60_000

/** A file that is sent, or that was since the page was loaded. */
export type Upload = {
  id: number
  name: string
  size: number
  sent: number
  status: 'waiting' | 'sending' | 'done' | 'failed' | 'stopped'
  error?: unknown
  fileId?: string
}
type Job = { id: number; file: File; prefix?: string; isIngested: boolean; stop: AbortController }

const uploadsKey = (projectId: string) => ['uploads', projectId]

let lastId = 0
let sending = 0
const waiting: (() => Promise<void>)[] = []
/** Jobs that are not done, to stop them and to send them again. */
const jobs = new Map<number, Job>()

/** Returns the response of a request. It reports the bytes sent, which `fetch` of browsers does not. */
const reporting =
  (onSent: (bytes: number) => void): typeof globalThis.fetch =>
  (address, { method = 'GET', headers, body, signal } = {}) =>
    new Promise((resolve, reject) => {
      const request = new XMLHttpRequest()
      request.open(method, String(address))
      for (const [name, value] of Object.entries(headers as Record<string, string>))
        request.setRequestHeader(name, value)
      request.responseType = 'arraybuffer'
      request.upload.onprogress = ({ loaded }) => onSent(loaded)
      request.onload = () => {
        const lines = request.getAllResponseHeaders().trim().split('\r\n')
        const received = lines.map(line => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1).trim()])
        const { status, response } = request
        try {
          resolve(new Response(status === 204 ? null : response, { status, headers: received as [string, string][] }))
        } catch (error) {
          // A status or header that cannot be in a response, of a proxy.
          reject(error)
        }
      }
      request.onerror = () => reject(new TypeError('the connection failed'))
      request.onabort = () => reject(signal?.reason)
      signal?.addEventListener('abort', () => request.abort())
      request.send(body as XMLHttpRequestBodyInit)
    })

/** The uploads of a project, which continue while other views are open, and the functions that change them. */
export function useUploads(projectId: string) {
  const cache = useQueryClient()
  const { data: uploads } = useQuery<Upload[]>({
    queryKey: uploadsKey(projectId),
    // Reading everything again must not replace them.
    enabled: false,
    initialData: [],
    gcTime: Number.POSITIVE_INFINITY,
  })
  const write = (change: (uploads: Upload[]) => Upload[]) =>
    cache.setQueryData<Upload[]>(uploadsKey(projectId), all => change(all ?? []))
  const start = (job: Job) => {
    jobs.set(job.id, job)
    const { id, file } = job
    const row: Upload = { id, name: file.name, size: file.size, sent: 0, status: 'waiting' }
    write(all => (all.some(each => each.id === id) ? all.map(each => (each.id === id ? row : each)) : [...all, row]))
    waiting.push(() => send(cache, projectId, job))
    void next()
  }
  return {
    uploads,
    /** Sends files to a folder; `isIngested` makes them documents too. */
    upload: (files: File[], { prefix, isIngested }: { prefix?: string; isIngested: boolean }) => {
      for (const file of files) start({ id: ++lastId, file, prefix, isIngested, stop: new AbortController() })
    },
    stop: (id: number) => jobs.get(id)?.stop.abort(),
    retry: (id: number) => {
      const job = jobs.get(id)
      if (job) start({ ...job, stop: new AbortController() })
    },
    /** Forgets the uploads that have ended. */
    clear: () => {
      for (const { id, status } of uploads) if (status !== 'sending' && status !== 'waiting') jobs.delete(id)
      write(all => all.filter(({ status }) => status === 'sending' || status === 'waiting'))
    },
  }
}

async function next(): Promise<void> {
  if (sending >= CONCURRENT) return
  const job = waiting.shift()
  if (!job) return
  sending++
  const release = confirmUnload()
  await job()
  sending--
  release()
  void next()
}

async function send(cache: QueryClient, projectId: string, job: Job): Promise<void> {
  const { id, file, prefix, isIngested, stop } = job
  const patch = (fields: Partial<Upload>) =>
    cache.setQueryData<Upload[]>(uploadsKey(projectId), all =>
      all?.map(upload => (upload.id === id ? { ...upload, ...fields } : upload)),
    )
  try {
    stop.signal.throwIfAborted()
    patch({ status: 'sending' })
    const client = new Client({
      baseUrl: location.origin,
      token: accessToken,
      fetch: reporting(sent => patch({ sent: Math.min(sent, file.size) })),
    })
    const args = { project_id: projectId, file, ...(prefix ? { prefix } : {}) }
    const stored = await uploadFile(client, args, { signal: stop.signal, timeoutMs: UPLOAD_MS })
    if (isIngested) await ingestDocument(api, { project_id: projectId, file_id: stored.id })
    patch({ status: 'done', sent: file.size, fileId: stored.id })
    jobs.delete(id)
  } catch (error) {
    patch(stop.signal.aborted ? { status: 'stopped' } : { status: 'failed', error })
  }
  void cache.invalidateQueries({ queryKey: ['files', projectId] })
  void cache.invalidateQueries({ queryKey: ['documents', projectId] })
}
