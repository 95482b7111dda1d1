import type { IncomingMessage } from 'node:http'

/** Bytes at the beginning of an upload in which its project must be. */
const PEEK_BYTES = 65_536

const FORM_FIELD = /name="project_id"(?:\r\n[^\r\n]{1,200}){0,5}\r\n\r\n([^\r\n]{1,64})\r\n/
const JSON_FIELD = /"project_id"\s{0,20}:\s{0,20}"([^"\\]{1,64})"/
const FILE = /filename[*]?=/

/**
 * Returns the project that the fields before the file of an upload name, null without one. The read bytes remain in the body. The
 * project selects the cell that reads the upload, and is authorized like a project in the query.
 */
export function peekProject(req: IncomingMessage): Promise<string | null> {
  const parts: Buffer[] = []
  let size = 0
  let scanned = 0
  return new Promise(resolve => {
    const end = (project: string | null) => {
      req.off('readable', read).off('close', closed)
      // Within the tick of the last read: a body that was read to its end cannot be restored after it.
      if (parts.length > 0 && !req.destroyed) req.unshift(Buffer.concat(parts))
      resolve(project)
    }
    const closed = () => end(null)
    const read = () => {
      for (let part = req.read(); part !== null; part = req.read()) {
        parts.push(part)
        size += part.length
      }
      const isLast = size >= PEEK_BYTES || req.complete
      // A body in small pieces is scanned a few times, not once for each.
      if (!isLast && size < 2 * scanned) return
      scanned = size
      const text = Buffer.concat(parts).toString('latin1', 0, PEEK_BYTES)
      const file = text.search(FILE)
      const fields = file < 0 ? text : text.slice(0, file)
      const project = (FORM_FIELD.exec(fields) ?? JSON_FIELD.exec(fields))?.[1] ?? null
      if (project !== null || file >= 0 || isLast) end(project)
    }
    req.on('readable', read).on('close', closed)
  })
}
