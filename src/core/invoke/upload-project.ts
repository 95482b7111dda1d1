import type { IncomingMessage } from 'node:http'

/** Bytes at the beginning of an upload in which its project must be. */
const PEEK_BYTES = 65_536

/** Returns the field of a multipart form; null if it is not complete. */
function formField(text: string): string | null {
  const at = text.indexOf('name="project_id"')
  const start = at < 0 ? -1 : text.indexOf('\r\n\r\n', at)
  const end = start < 0 ? -1 : text.indexOf('\r\n', start + 4)
  return end < 0 ? null : text.slice(start + 4, end)
}

/** Returns the property of a JSON object; null if it is not complete. */
function jsonField(text: string): string | null {
  const [, rest = ''] = text.split('"project_id"', 2)
  const value = rest.trimStart().startsWith(':') ? rest.trimStart().slice(1).trimStart() : ''
  const end = value.startsWith('"') ? value.indexOf('"', 1) : -1
  return end < 0 ? null : value.slice(1, end)
}

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
      const file = text.indexOf('filename=')
      const fields = file < 0 ? text : text.slice(0, file)
      const project = formField(fields) ?? jsonField(fields)
      if (project !== null || file >= 0 || isLast) end(project)
    }
    req.on('readable', read).on('close', closed)
  })
}
