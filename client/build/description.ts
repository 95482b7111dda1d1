/** The parts of the description that the build reads. */
export type Schema = {
  $ref?: string
  type?: string | string[]
  const?: unknown
  pattern?: string
  enum?: unknown[]
  items?: Schema
  properties?: Record<string, Schema>
  additionalProperties?: Schema | boolean
  required?: string[]
  anyOf?: Schema[]
  oneOf?: Schema[]
  allOf?: Schema[]
  description?: string
  'x-secret'?: boolean
  'x-columns'?: string[]
}

export type Media = Record<string, { schema: Schema }>

export type Parameter = {
  $ref?: string
  name: string
  in: 'path' | 'query' | 'header'
  required?: boolean
  schema: Schema
  description?: string
}

export type Response = { $ref?: string; content?: Media }

export type FlatField = { name: string; in: 'path' | 'query' | 'body'; required?: boolean; schema?: Schema }

export type DescribedOperation = {
  operationId: string
  summary: string
  description?: string
  tags: string[]
  security?: unknown[]
  parameters?: Parameter[]
  requestBody?: { required?: boolean; content: Media }
  responses: Record<string, Response>
  'x-command'?: string[]
  'x-alias-of'?: string
  'x-iam-action': string | null
  'x-error-codes'?: string[]
  'x-flat'?: FlatField[]
  'x-paged'?: 'offset' | 'cursor'
  'x-stream'?: {
    events: string[]
    last: string[]
    resume: string | null
    selected_by: { in: string; name: string } | null
  }
  'x-wait'?: {
    parameter: string
    default: boolean
    running: string[]
    done: string[]
    failed: string[]
    paused: string[]
    poll: string
  }
  'x-dry-run'?: string
}

export type Description = {
  info: { version: string }
  paths: Record<string, Record<string, DescribedOperation>>
  components: {
    parameters: Record<string, Parameter>
    responses: Record<string, Response>
    schemas: Record<string, Schema>
  }
  'x-error-codes': Record<string, { status: number }>
}

/** An operation with its route. */
export type Route = { method: string; path: string; operation: DescribedOperation }

export const EVENTS = 'text/event-stream'
export const FORM = 'multipart/form-data'
export const JSON_TYPE = 'application/json'
export const NDJSON = 'application/x-ndjson'

/** Returns the target of references. */
export function resolve<T extends { $ref?: string }>(description: Description, value: T): T {
  if (value.$ref === undefined) return value
  const [, ...keys] = value.$ref.split('/')
  const target = keys.reduce((node: any, key) => node[key.replaceAll('~1', '/').replaceAll('~0', '~')], description)
  return resolve(description, target as T)
}

/** Returns the operations that clients have: with a command, and no alias of another. */
export const clientRoutes = (description: Description): Route[] =>
  Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([, operation]) => operation['x-command'] && !operation['x-alias-of'])
      .map(([method, operation]) => ({
        method: method.toUpperCase(),
        path: path.replace('/api/v1', ''),
        operation,
      })),
  )

/** Returns the parameters of an operation in path or query, resolved. */
export const parametersOf = (description: Description, { parameters = [] }: DescribedOperation): Parameter[] =>
  parameters.map(each => resolve(description, each))

/** Returns the fields of the flat call: those published, or the parameters of an operation without a JSON body. */
export function flatOf(description: Description, operation: DescribedOperation): FlatField[] {
  const parameters = parametersOf(description, operation).filter(({ in: part }) => part !== 'header')
  const fields = operation['x-flat'] ?? parameters.map(({ name, in: part, required }) => ({ name, in: part, required }))
  return fields as FlatField[]
}

/** Returns the content of a successful response by media type. */
export const contentOf = (description: Description, operation: DescribedOperation): Media =>
  Object.assign(
    {},
    ...Object.entries(operation.responses)
      .filter(([status]) => status < '300')
      .map(([, response]) => resolve(description, response).content ?? {}),
  )

/** A field of the flat call with its schema and description. */
export type Field = {
  name: string
  in: 'path' | 'query' | 'body'
  required?: boolean
  schema?: Schema
  description?: string
}

/** Returns the fields of a call: of the flat call, or parameters and fields of a form. */
export function fieldsOf(description: Description, operation: DescribedOperation): Field[] {
  const parameters = parametersOf(description, operation)
  const sent = operation.requestBody?.content ?? {}
  const body = resolve(description, (sent[JSON_TYPE] ?? sent[FORM])?.schema ?? {})
  const form = sent[JSON_TYPE]
    ? []
    : Object.keys(body.properties ?? {}).map(name => ({
        name,
        in: 'body' as const,
        required: body.required?.includes(name),
        schema: undefined,
      }))
  return [...flatOf(description, operation), ...form].map(({ name, in: part, required, schema: own }): Field => {
    const parameter = parameters.find(each => each.name === name && each.in === part)
    const schema = own ?? (part === 'body' ? body.properties?.[name] : parameter?.schema)
    const text = schema?.description ?? parameter?.description ?? (schema && resolve(description, schema).description)
    return { name, in: part, required, schema, description: text }
  })
}

/** How the flat arguments of an operation become a request. */
export type Shape = {
  action?: string
  body?: 'none' | 'optional' | 'form' | 'file'
  query?: string[]
  project?: true
  keyed?: false
}

/** Returns how the arguments of an operation become its request. */
export function shapeOf(description: Description, { method, operation }: Route): Shape {
  const { requestBody, security } = operation
  const flat = flatOf(description, operation)
  const query = flat.filter(each => each.in === 'query').map(each => each.name)
  const isBodyless = ['GET', 'DELETE'].includes(method)
  const fileBody = requestBody?.content[FORM] ? 'form' : requestBody && !requestBody.content[JSON_TYPE] ? 'file' : null
  const body =
    fileBody ?? (!requestBody ? (isBodyless ? undefined : 'none') : requestBody.required ? undefined : 'optional')
  const form = resolve(description, requestBody?.content[FORM]?.schema ?? {})
  const takesProject =
    flat.some(each => each.name === 'project_id' && each.in !== 'path') || form.properties?.project_id
  return {
    action: operation['x-iam-action'] ?? undefined,
    body,
    query: requestBody && query.length > 0 ? query : undefined,
    // Not for changes: there it would change the record.
    project: ['GET', 'POST'].includes(method) && takesProject ? true : undefined,
    keyed: method === 'POST' && security?.length === 0 ? false : undefined,
  }
}

/** The stream of an operation: paths that resume it and cancel its work, name of its union, events with a result. */
export type StreamModel = { resume?: string; cancel?: string; union: string; results: string[] }

/** Returns the model of the stream of an operation. */
export function streamOf(
  description: Description,
  routes: ReadonlyMap<string, Route>,
  { path, operation }: Route,
): StreamModel {
  const { last, resume } = operation['x-stream']!
  const resumed = resume === null ? undefined : routes.get(resume)!.path
  const cancel = `${(resumed ?? path).replace(/\/stream$/, '')}/cancel`
  const isCancelled = [...routes.values()].some(each => each.method === 'POST' && each.path === cancel)
  const { $ref } = contentOf(description, operation)[EVENTS].schema
  return {
    resume: resumed,
    cancel: isCancelled ? cancel : undefined,
    union: $ref!.split('/').at(-1) as string,
    results: last.filter(event => event !== 'error'),
  }
}

/** Functions by the words of their commands. */
export type Branch<T> = Map<string, Branch<T> | T>

/** Returns functions as a tree by their words. @throws Error if two have the same words */
export function treeOf<T extends { words: readonly string[] }>(functions: readonly T[]): Branch<T> {
  const tree: Branch<T> = new Map()
  for (const made of functions) {
    const branch = made.words.slice(0, -1).reduce((node, word) => {
      if (!node.has(word)) node.set(word, new Map())
      return node.get(word) as Branch<T>
    }, tree)
    const last = made.words.at(-1)!
    if (branch.has(last)) throw new Error(`two methods have the name ${made.words.join('.')}`)
    branch.set(last, made)
  }
  return tree
}
