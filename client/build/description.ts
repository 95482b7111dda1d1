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
