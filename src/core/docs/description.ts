/** The parts of the OpenAPI document that the documentation reads. */

export type Schema = {
  $ref?: string
  type?: string | string[]
  format?: string
  description?: string
  enum?: unknown[]
  const?: unknown
  anyOf?: Schema[]
  oneOf?: Schema[]
  allOf?: Schema[]
  items?: Schema
  additionalProperties?: Schema | boolean
  properties?: Record<string, Schema>
  required?: string[]
  'x-secret'?: boolean
  [keyword: string]: unknown
}

export type Content = Record<string, { schema: Schema; example?: unknown }>

export type Parameter = {
  $ref?: string
  name: string
  in: 'path' | 'query' | 'header'
  required?: boolean
  style?: string
  schema: Schema
  description?: string
}

export type Response = {
  $ref?: string
  description: string
  content?: Content
  'x-error-codes'?: string[]
  'x-statuses'?: number[]
}

export type DescribedOperation = {
  operationId: string
  summary: string
  description?: string
  tags: string[]
  security?: unknown[]
  parameters?: Parameter[]
  requestBody?: { required?: boolean; content: Content }
  responses: Record<string, Response>
  'x-command'?: string[]
  'x-alias-of'?: string
  'x-iam-action'?: string | null
  'x-iam-also'?: string[]
  'x-error-codes'?: string[]
  'x-flat'?: { name: string; in: string; required?: boolean; schema?: Schema }[]
  'x-paged'?: string
  'x-stream'?: { selected_by: { name: string } | null }
}

export type Description = {
  tags: { name: string; description: string }[]
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

export const JSON_TYPE = 'application/json'
export const FORM = 'multipart/form-data'
export const NDJSON = 'application/x-ndjson'

/** Returns the operations in document order, without aliases of others. */
export const routesOf = ({ paths }: Description): Route[] =>
  Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([, operation]) => !operation['x-alias-of'])
      .map(([method, operation]) => ({ method: method.toUpperCase(), path, operation })),
  )

/** Returns the target of references. */
export function resolve<T extends { $ref?: string }>(description: Description, value: T): T {
  if (value.$ref === undefined) return value
  const [, ...keys] = value.$ref.split('/')
  const target = keys.reduce<unknown>((node, key) => (node as Record<string, unknown>)[key], description)
  return resolve(description, target as T)
}

export const parametersOf = (description: Description, { parameters = [] }: DescribedOperation): Parameter[] =>
  parameters.map(each => resolve(description, each))

/** Returns the content of the first successful response. */
export function answerOf(description: Description, { responses }: DescribedOperation): Content {
  const status = Object.keys(responses).find(each => each < '300')
  return (status && resolve(description, responses[status]).content) || {}
}

/** Returns the name of a referenced component. */
export const componentName = ($ref: string): string => $ref.slice($ref.lastIndexOf('/') + 1)
