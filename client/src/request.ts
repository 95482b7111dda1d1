import type { Client, Outgoing } from './client.ts'
import { type FileInput, formOf, rawBody } from './form.ts'

/** How the flat arguments of an operation become a request. */
export type Shape = {
  /** The action that a policy must allow. */
  action?: string
  /** Default: JSON for POST, PUT and PATCH, none for GET and DELETE. `optional` is JSON that is absent without a field. */
  body?: 'none' | 'optional' | 'form' | 'file'
  /** Parameters of the query, of an operation with a body. */
  query?: readonly string[]
  /** Whether the operation accepts `project_id`. */
  project?: boolean
  /** False for a POST that accepts no Idempotency-Key. */
  keyed?: false
  /** Whether another function streams the operation: with `stream` the answer of this one would be no result. */
  streams?: true
}

export type Args = Record<string, unknown>

/** Replaces the parameters of a path by arguments. */
export function fillPath(path: string, args: Args): string {
  return path.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = args[name]
    // A dot segment would lead to another path.
    if (value === undefined || value === null || value === '' || value === '.' || value === '..')
      throw new TypeError(`${name} is required`)
    return encodeURIComponent(String(value))
  })
}

/** Returns values as a query: lists repeat the name, objects have the form `name[key]=value`, null counts as absent. */
function queryOf(values: Args): string {
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(values)) {
    if (value === undefined || value === null) continue
    if (Array.isArray(value)) for (const item of value) query.append(name, String(item))
    else if (typeof value === 'object')
      for (const [key, item] of Object.entries(value)) query.append(`${name}[${key}]`, String(item))
    else query.append(name, String(value))
  }
  const text = query.toString()
  return text && `?${text}`
}

/** Returns the request of flat arguments: path parameters first, then query parameters, others are the body. */
export function requestOf(
  route: string,
  shape: Shape,
  given: Args | undefined,
  { project }: Pick<Client, 'project'>,
): Omit<Outgoing, 'accept'> {
  const [method, path] = route.split(' ')
  if (shape.streams && given?.stream) throw new TypeError('stream is no argument: call the method that streams')
  const args = shape.project && project !== undefined ? { project_id: project, ...given } : { ...given }
  const kind = shape.body ?? (method === 'GET' || method === 'DELETE' ? 'none' : 'json')
  const inPath = [...path.matchAll(/\{(\w+)\}/g)].map(match => match[1])
  const outside = kind === 'none' ? null : [...inPath, ...(shape.query ?? [])]
  const query: Args = {}
  const body: Args = {}
  for (const [name, value] of Object.entries(args)) {
    if (inPath.includes(name)) continue
    if (outside === null || outside.includes(name)) query[name] = value
    else body[outside.includes(name.replace(/^body_/, '')) ? name.slice('body_'.length) : name] = value
  }
  const request = { method, path: `/api/v1${fillPath(path, args)}${queryOf(query)}`, isKeyed: shape.keyed !== false }
  if (kind === 'none' || (kind === 'optional' && Object.values(body).every(value => value === undefined)))
    return request
  if (kind === 'form') return { ...request, ...formOf(body as { file: FileInput }) }
  if (kind === 'file') return { ...request, ...rawBody(body as { file: FileInput; content_type?: string }) }
  return { ...request, headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }
}
