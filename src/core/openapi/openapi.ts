import type { z } from 'zod'
import { commandsOf, pagingOf } from '../api/commands.ts'
import { DEPRECATED } from '../api/deprecation.ts'
import type { EndUserAccess } from '../api/end-user.ts'
import { flatten } from '../api/flatten.ts'
import { type Operation, operationTags } from '../api/operation.ts'
import { fieldsOf, pathDescription, pathNames, queryFields } from '../api/parameters.ts'
import type { Config } from '../base/config.ts'
import { type ErrorCode, errorDocument, errorEntry } from '../base/errors.ts'
import { Components, inOrderOfUse, publishedComponents, type SchemaNode, withoutRepeats } from './components.ts'
import { Examples } from './examples.ts'

/** Generates `/openapi.json` from the operations. docs/api.md describes its extensions. */

/** Returns the error codes that the request pipeline raises for an operation, besides its own. */
function pipelineCodes(operation: Operation): ErrorCode[] {
  const codes: ErrorCode[] = ['INTERNAL_ERROR', 'SERVICE_NOT_READY', 'VALIDATION_FAILED']
  if (operation.gate === 'public') return codes
  codes.push('UNAUTHORIZED', 'FORBIDDEN', 'QUOTA_EXCEEDED')
  if (operation.endUser) codes.push('ACTOR_LIMIT_EXCEEDED' as ErrorCode)
  if (operation.endUser && operation.stream) codes.push('STREAM_LIMIT_EXCEEDED' as ErrorCode)
  if (operation.shape === 'item' && operation.kind) codes.push(operation.kind.notFound)
  if (operation.path.includes('{')) codes.push('RESOURCE_NOT_FOUND')
  codes.push('API_KEY_PROJECT_SCOPE')
  if (namesProject(operation)) codes.push('RESOURCE_NOT_FOUND')
  if (storesKeys(operation))
    codes.push('IDEMPOTENCY_KEY_REUSED', 'IDEMPOTENCY_IN_PROGRESS', 'IDEMPOTENCY_LIMIT_EXCEEDED')
  if (operation.method === 'post' && operation.secretAnswer) codes.push('SECRET_NOT_DECRYPTABLE')
  if (takesIfMatch(operation)) codes.push('PRECONDITION_FAILED')
  return codes
}

/** Statuses of the HTTP layer for a body that times out, is too large, or has an unsupported encoding. */
const BODY_REFUSALS = [408, 413, 415]

/** Returns the refusal statuses of an operation, and its codes in addition to COMMON_CODES. */
function refusalsOf(operation: Operation): { statuses: Set<number>; codes: ErrorCode[] } {
  const codes = [...new Set([...pipelineCodes(operation), ...operation.raises])]
  const rejected = [...(operation.body ? BODY_REFUSALS : []), ...operation.rejects]
  return {
    statuses: new Set([...codes.map(code => errorEntry(code).status), ...rejected].sort()),
    codes: codes.filter(code => !COMMON_CODES.has(code)).sort(),
  }
}

/** Codes common to all operations to which they apply. */
const COMMON_CODES: ReadonlySet<ErrorCode> = new Set([
  'API_KEY_PROJECT_SCOPE',
  'FORBIDDEN',
  'IDEMPOTENCY_IN_PROGRESS',
  'IDEMPOTENCY_KEY_REUSED',
  'IDEMPOTENCY_LIMIT_EXCEEDED',
  'INTERNAL_ERROR',
  'PRECONDITION_FAILED',
  'QUOTA_EXCEEDED',
  'RESOURCE_NOT_FOUND',
  'SERVICE_NOT_READY',
  'UNAUTHORIZED',
  'VALIDATION_FAILED',
])

/** Whether a body of a type has fields; bodies of other types are opaque bytes. */
const describesFields = (type: string): boolean => type === 'application/json' || type === 'multipart/form-data'

/** Whether a request specifies its project, in its path or as `project_id`. */
const namesProject = ({ shape, kind, gate }: Operation): boolean =>
  shape === 'item' ? kind?.name === 'project' : gate === 'policy' || gate === 'owner'

/** Whether an operation stores its response for an Idempotency-Key: a read is repeated instead. */
const storesKeys = ({ method, reads, gate }: Operation): boolean => method === 'post' && !reads && gate !== 'public'

const takesIfMatch = ({ shape, method, raises }: Operation): boolean =>
  shape === 'item' && (['put', 'patch', 'delete'].includes(method) || raises.includes('PRECONDITION_FAILED'))

/** Descriptions of success statuses. */
const STATUSES: Record<number, string> = {
  200: 'Result',
  201: 'Result',
  202: 'Accepted for background processing',
  204: 'No content',
  206: 'Requested range',
  304: 'Not modified; the ETag matches If-None-Match',
}

const NDJSON = 'application/x-ndjson'
const EVENTS = 'text/event-stream'

/** Parts of a document shared by operations. */
class Shared {
  readonly components = new Components()
  readonly examples = new Examples(this.components)
  readonly parameters: Record<string, SchemaNode> = {}
  readonly responses: Record<string, SchemaNode> = {}
  readonly commands: ReadonlyMap<string, readonly string[]>
  /** Whether responses have examples of records and events. */
  readonly hasResponseExamples: boolean
  readonly #refusals = new Map<string, string>()

  constructor(operations: readonly Operation[], hasResponseExamples: boolean) {
    this.commands = new Map(commandsOf(operations).map(({ id, words }) => [id, words]))
    this.hasResponseExamples = hasResponseExamples
  }

  /** Returns the field with the example of a response of a schema; no field if responses have none. */
  responseExample(schema: SchemaNode, owner?: string): { example?: unknown } {
    return this.hasResponseExamples ? { example: this.examples.answered(schema, owner) } : {}
  }

  /** Returns a reference to a parameter, a component named by its location and name. */
  parameter(parameter: SchemaNode & { name: string; in: string }): SchemaNode {
    const text = JSON.stringify(parameter)
    for (let count = 1; ; count++) {
      const name = `${parameter.in}.${parameter.name}${count === 1 ? '' : `.${count}`}`
      this.parameters[name] ??= parameter
      if (JSON.stringify(this.parameters[name]) === text) return { $ref: `#/components/parameters/${name}` }
    }
  }

  /** Returns a reference to the refusals with these statuses: one component for all operations that have the same. */
  refusals(statuses: ReadonlySet<number>): SchemaNode {
    const text = [...statuses].join(', ')
    let name = this.#refusals.get(text)
    if (name === undefined) {
      name = `Refusals${this.#refusals.size + 1}`
      this.#refusals.set(text, name)
      this.responses[name] = {
        description: `Refused with status ${text}`,
        'x-statuses': [...statuses],
        'x-error-codes': [...COMMON_CODES].filter(code => statuses.has(errorEntry(code).status)),
        content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } },
      }
    }
    return { $ref: `#/components/responses/${name}` }
  }
}

function parametersOf(operation: Operation, shared: Shared): SchemaNode[] {
  const fields = Object.entries(queryFields(operation)).filter(([name]) => !pathNames(operation).includes(name))
  return [
    ...pathNames(operation).map(name => ({
      name,
      in: 'path',
      required: true,
      schema: { type: 'string' },
      description: pathDescription(name),
    })),
    ...fields.map(([name, type]) => queryParameter(name, type, shared)),
    ...(storesKeys(operation) ? [IDEMPOTENCY_KEY] : []),
    ...(takesIfMatch(operation) ? [IF_MATCH] : []),
  ].map(parameter => shared.parameter(parameter))
}

/** Returns a query parameter. Objects, such as tag filters, have the style `tags[key]=value`. */
function queryParameter(name: string, type: z.ZodType, { components }: Shared) {
  const { description, deprecated, [DEPRECATED]: deprecation, ...schema } = components.schema(type, 'input')
  return {
    name,
    in: 'query',
    ...(type.safeParse(undefined).success ? {} : { required: true }),
    schema,
    ...(typeof description === 'string' ? { description } : {}),
    ...(deprecated ? { deprecated, [DEPRECATED]: deprecation } : {}),
    ...(schema.type === 'object' ? { style: 'deepObject', explode: true } : {}),
  }
}

const IDEMPOTENCY_KEY = {
  name: 'Idempotency-Key',
  in: 'header',
  schema: { type: 'string', minLength: 1, maxLength: 255 },
  description:
    'Key that makes the request idempotent. A repeat within 24 hours with the same key and body returns the first response. If that response was lost, the repeat waits for, or streams, the work that the first request started.',
}

const IF_MATCH = {
  name: 'If-Match',
  in: 'header',
  schema: { type: 'string' },
  description: 'ETag of the record when it was read. The request is refused if the record has changed since then.',
}

function bodyOf(operation: Operation, { components, examples }: Shared): SchemaNode | null {
  const { body, bodyOptional, consumes } = operation
  if (!body) return null
  const bytes = { schema: { type: 'string', format: 'binary' }, example: 'bytes of the file' }
  const content = consumes.map((type): [string, SchemaNode] => {
    if (!describesFields(type)) return [type, bytes]
    const schema = components.schema(body, 'input')
    return [type, { schema, example: examples.sent(schema) }]
  })
  return { required: !bodyOptional, content: Object.fromEntries(content) }
}

/** Returns the content of a response by media type, or null. */
function contentOf(operation: Operation, status: number, shared: Shared): SchemaNode | null {
  const { answers, produces, alsoProduces = {}, stream, kind } = operation
  const { components } = shared
  const type = answers[status]
  const content: SchemaNode = {}
  if (type) {
    const schema = withColumns(operation, components.schema(type, 'output'), components)
    content[produces === NDJSON ? NDJSON : 'application/json'] = {
      schema,
      // The items of a list have their own example, at the operation that returns one.
      ...(pagingOf(operation) ? {} : shared.responseExample(schema, kind?.name)),
    }
  } else if (produces && !stream && (status === 200 || status === 206)) {
    content[produces] =
      produces === 'text/plain'
        ? { schema: { type: 'string' }, example: 'text' }
        : { schema: { type: 'string', format: 'binary' }, example: 'bytes of the file' }
  }
  if (status === 200)
    for (const [media, example] of Object.entries(alsoProduces))
      content[media] = { schema: { type: 'string' }, example }
  if (stream && status === 200) {
    const schema = eventSchema(stream, components)
    content[EVENTS] = { schema, ...shared.responseExample(schema, kind?.name) }
  }
  return Object.keys(content).length > 0 ? content : null
}

/** Returns the schema of the events of a stream: a component, discriminated by event name. */
function eventSchema({ name, events }: NonNullable<Operation['stream']>, components: Components): SchemaNode {
  const named = events.map(event => [event.shape.event.value, components.schema(event, 'output')] as const)
  return components.named(name, {
    oneOf: named.map(([, schema]) => schema),
    discriminator: {
      propertyName: 'event',
      mapping: Object.fromEntries(named.map(([event, { $ref }]) => [event, $ref])),
    },
  })
}

/** Returns the schema of a list with `x-columns`, the columns for a table. */
function withColumns(operation: Operation, schema: SchemaNode, components: Components): SchemaNode {
  if (!pagingOf(operation)) return schema
  const columns = columnsOf(operation, components.resolve(schema), components)
  return columns.length > 0 ? { ...schema, 'x-columns': columns } : schema
}

/** Preferred table columns, in their order. */
const PREFERRED_COLUMNS = [
  'id',
  'key',
  'action',
  'name',
  'username',
  'title',
  'path',
  'summary',
  'type',
  'kind',
  'event_type',
  'model',
  'role',
  'status',
  'state',
  'verdict',
  'severity',
  'version',
  'agent_id',
  'attempts',
  'content',
  'total',
  'active',
  'enabled',
  'created_at',
  'started_at',
]
const MAX_COLUMNS = 6

function columnsOf({ kind }: Operation, list: SchemaNode, components: Components): readonly string[] {
  const data = (list.properties as Record<string, SchemaNode> | undefined)?.data
  const item = components.resolve((data?.items ?? {}) as SchemaNode)
  const fields = Object.keys((item.properties ?? {}) as SchemaNode)
  if (kind?.listed?.every(name => fields.includes(name))) return kind.listed
  const preferred = PREFERRED_COLUMNS.filter(name => fields.includes(name))
  return [...preferred, ...fields.filter(name => !preferred.includes(name))].slice(
    0,
    Math.min(MAX_COLUMNS, Math.max(preferred.length, 2)),
  )
}

/**
 * Returns the flat call of an operation with a body, or null. A field has a schema only if no parameter or body property of
 * the same name defines it.
 */
function flatOf(operation: Operation, body: SchemaNode | null, { components }: Shared): SchemaNode[] | null {
  const call = body && flatten(operation)
  if (!call) return null
  const sent = (body.content as Record<string, { schema: SchemaNode }>)['application/json']?.schema
  const properties = (sent && (components.resolve(sent).properties as SchemaNode | undefined)) ?? {}
  return [...call.fields.values()]
    .filter(({ isAlias }) => !isAlias)
    .map(({ name, in: part, field, required, schema }) => ({
      name,
      in: part,
      ...(required ? { required } : {}),
      ...(part === 'body' && !(field in properties && field === name) ? { schema: properties[field] ?? schema } : {}),
    }))
}

/** Returns the extensions of an operation for clients and command lines. */
function extensions(operation: Operation, shared: Shared): SchemaNode {
  const { id, body, query, stream, aliasOf, checkedBy, waiting } = operation
  const locationOf = (name: string) => (name in fieldsOf(body) ? 'body' : name in fieldsOf(query) ? 'query' : null)
  const command = shared.commands.get(id)
  const paged = pagingOf(operation)
  const selector = locationOf('stream')
  const check = locationOf('dry_run') ? 'dry_run' : checkedBy
  return {
    ...(command ? { 'x-command': command } : {}),
    ...(aliasOf ? { 'x-alias-of': aliasOf } : {}),
    ...(paged ? { 'x-paged': paged } : {}),
    ...(stream
      ? {
          'x-stream': {
            events: stream.events.map(event => event.shape.event.value),
            last: stream.last,
            resume: stream.resume,
            selected_by: selector ? { in: selector, name: 'stream' } : null,
          },
        }
      : {}),
    ...(waiting ? { 'x-wait': { parameter: 'wait', ...waiting } } : {}),
    ...(check ? { 'x-dry-run': check } : {}),
    ...(operation.endUser ? { 'x-end-user': endUserOf(operation.endUser) } : {}),
  }
}

/** Describes the access of end users: the scope of the token, the fields it may send, and the fields it gets. */
const endUserOf = ({ scope, fields, view }: EndUserAccess): SchemaNode => ({
  scope,
  ...(fields ? { body: fields } : {}),
  ...(view ? { response: Object.keys(view.shown) } : {}),
})

function describe(operation: Operation, shared: Shared): SchemaNode {
  const parameters = parametersOf(operation, shared)
  const body = bodyOf(operation, shared)
  const flat = flatOf(operation, body, shared)
  const refusals = refusalsOf(operation)
  const responses: SchemaNode = {}
  for (const status of Object.keys(operation.answers).map(Number)) {
    const content = contentOf(operation, status, shared)
    responses[status] = { description: STATUSES[status], ...(content ? { content } : {}) }
  }
  responses.default = shared.refusals(refusals.statuses)
  // In this order, names that derive from each other are neighbours, which compresses better.
  return {
    tags: [operation.tag],
    ...extensions(operation, shared),
    summary: operation.summary,
    operationId: operation.id,
    'x-iam-action': operation.action,
    ...(operation.alsoActions.length > 0 ? { 'x-iam-also': operation.alsoActions } : {}),
    ...(refusals.codes.length > 0 ? { 'x-error-codes': refusals.codes } : {}),
    ...(operation.deprecated ? { deprecated: true, [DEPRECATED]: operation.deprecated } : {}),
    ...(operation.gate === 'public' ? { security: [] } : {}),
    ...(parameters.length > 0 ? { parameters } : {}),
    ...(body ? { requestBody: body } : {}),
    ...(flat ? { 'x-flat': flat } : {}),
    responses,
    ...(operation.description ? { description: operation.description } : {}),
  }
}

const errorSchema = () => ({
  type: 'object',
  required: ['error'],
  properties: {
    error: {
      type: 'object',
      description: 'Error',
      required: ['code', 'message', 'hint', 'docs_url'],
      properties: {
        code: { type: 'string', description: 'Stable error code, a key of x-error-codes' },
        message: { type: 'string', description: 'Human-readable message, which may change' },
        hint: { type: 'string', description: 'Suggested remedy' },
        docs_url: { type: 'string', description: 'URL of the documentation of the code' },
        meta: {
          type: 'object',
          additionalProperties: true,
          description: 'Details of the error; the fields depend on the code',
        },
      },
    },
  },
})

/** Replaces responses used by several operations with references to components, named after their schemas. */
function shareResponses(described: readonly SchemaNode[]): Record<string, SchemaNode> {
  const seen = new Map<string, [SchemaNode, string][]>()
  for (const { responses } of described as { responses: Record<string, SchemaNode> }[])
    for (const [status, response] of Object.entries(responses))
      if (!response.$ref) {
        const text = JSON.stringify(response)
        seen.set(text, [...(seen.get(text) ?? []), [responses, status]])
      }
  const components: Record<string, SchemaNode> = {}
  for (const [text, places] of seen) {
    if (places.length === 1) continue
    const named = /"\$ref":"#\/components\/schemas\/(\w+)"/.exec(text)?.[1] ?? 'Done'
    let name = named
    for (let count = 2; components[name]; count++) name = `${named}${count}`
    components[name] = JSON.parse(text)
    for (const [responses, status] of places) responses[status] = { $ref: `#/components/responses/${name}` }
  }
  return components
}

/**
 * Returns the OpenAPI document of the operations, which is the same for all callers. Examples of responses follow from their
 * schemas and are a sixth of the document: only the reference of /docs has them.
 */
export function openApiDocument(
  operations: readonly Operation[],
  config: Pick<Config, 'DOCS_BASE_URL'>,
  version: string,
  hasResponseExamples = false,
): SchemaNode {
  const shared = new Shared(operations, hasResponseExamples)
  shared.components.named('Error', errorSchema())
  const paths: Record<string, SchemaNode> = {}
  for (const operation of operations) {
    const path = `/api/v1${operation.path}`
    paths[path] ??= {}
    paths[path][operation.method] = describe(operation, shared)
  }
  const { parameters, components } = shared
  const responses = {
    ...shareResponses(Object.values(paths).flatMap(path => Object.values(path)) as SchemaNode[]),
    ...shared.responses,
  }
  return {
    openapi: '3.1.0',
    info: {
      title: 'Muster',
      version,
      description: 'Self-hosted back end for AI agent applications.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: '{baseUrl}', variables: { baseUrl: { default: 'http://localhost:5047' } } }],
    security: [{ bearer: [] }],
    tags: [...new Set(operations.map(operation => operation.tag))].map(name => ({
      name,
      description: operationTags.get(name)[1],
    })),
    paths,
    components: {
      securitySchemes: {
        bearer: {
          type: 'http',
          scheme: 'bearer',
          description:
            'A user token, a project key or an OAuth access token; for operations with `x-end-user` also the token of an end user.',
        },
      },
      parameters,
      responses,
      schemas: inOrderOfUse(
        withoutRepeats(publishedComponents(components.schemas, true) as Record<string, SchemaNode>),
        {
          paths,
          responses,
        },
      ),
    },
    'x-error-codes': errorDocument(config.DOCS_BASE_URL),
  }
}
