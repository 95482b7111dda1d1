import type { z } from 'zod'
import type { Config } from '../../config.ts'
import { commandsOf, pagingOf } from '../api/commands.ts'
import { type ErrorCode, errorDocument, errorEntry } from '../api/errors.ts'
import { flatten } from '../api/flatten.ts'
import { type Operation, operationTags } from '../api/operation.ts'
import { fieldsOf, pathDescription, pathNames, queryFields } from '../api/parameters.ts'
import { Components, inOrderOfUse, publishedComponents, type SchemaNode, withoutRepeats } from './components.ts'
import { Examples } from './examples.ts'

/** `/openapi.json`, out of the registry of operations alone. docs/api.md says what its extensions mean. */

/** What the request pipeline itself answers for an operation, beside what the operation raises. */
function pipelineCodes(operation: Operation): ErrorCode[] {
  const codes: ErrorCode[] = ['INTERNAL_ERROR', 'SERVICE_NOT_READY', 'VALIDATION_FAILED']
  if (operation.gate === 'public') return codes
  codes.push('UNAUTHORIZED', 'FORBIDDEN', 'QUOTA_EXCEEDED')
  if (operation.shape === 'item' && operation.kind) codes.push(operation.kind.notFound)
  if (operation.path.includes('{')) codes.push('RESOURCE_NOT_FOUND')
  codes.push('API_KEY_PROJECT_SCOPE')
  if (namesProject(operation)) codes.push('RESOURCE_NOT_FOUND')
  if (operation.method === 'post') codes.push('IDEMPOTENCY_KEY_REUSED', 'IDEMPOTENCY_IN_PROGRESS')
  if (operation.method === 'post' && operation.secretAnswer) codes.push('SECRET_NOT_DECRYPTABLE')
  if (takesIfMatch(operation)) codes.push('PRECONDITION_FAILED')
  return codes
}

/** What the HTTP layer answers for a body that does not end, is too large, or is encoded in a way it does not know. */
const BODY_REFUSALS = [408, 413, 415]

/** The statuses that an operation refuses with, and the codes that it adds to what any operation answers with them. */
function refusalsOf(operation: Operation): { statuses: Set<number>; codes: ErrorCode[] } {
  const codes = [...new Set([...pipelineCodes(operation), ...operation.raises])]
  const rejected = [...(operation.body ? BODY_REFUSALS : []), ...operation.rejects]
  return {
    statuses: new Set([...codes.map(code => errorEntry(code).status), ...rejected].sort()),
    codes: codes.filter(code => !COMMON_CODES.has(code)).sort(),
  }
}

/** Every code with which an operation refuses under a status. */
export function refusalCodes(operation: Operation, status: number): ErrorCode[] {
  const { statuses } = refusalsOf(operation)
  const codes = [...pipelineCodes(operation), ...operation.raises].filter(code => errorEntry(code).status === status)
  return codes.length === 0 && statuses.has(status) ? ['REQUEST_REJECTED'] : [...new Set(codes)].sort()
}

/** Codes that any operation may answer which takes what they are about. */
const COMMON_CODES: ReadonlySet<ErrorCode> = new Set([
  'API_KEY_PROJECT_SCOPE',
  'FORBIDDEN',
  'IDEMPOTENCY_IN_PROGRESS',
  'IDEMPOTENCY_KEY_REUSED',
  'INTERNAL_ERROR',
  'PRECONDITION_FAILED',
  'QUOTA_EXCEEDED',
  'RESOURCE_NOT_FOUND',
  'SERVICE_NOT_READY',
  'UNAUTHORIZED',
  'VALIDATION_FAILED',
])

/** Bodies of other types than JSON and forms are the bytes themselves. */
const describesFields = (type: string): boolean => type === 'application/json' || type === 'multipart/form-data'

/** Whether a request says which project it is about: in its path, or as `project_id`. */
const namesProject = ({ shape, kind, gate }: Operation): boolean =>
  shape === 'item' ? kind?.name === 'project' : gate === 'policy' || gate === 'owner'

const takesIfMatch = ({ shape, method, raises }: Operation): boolean =>
  shape === 'item' && (['put', 'patch', 'delete'].includes(method) || raises.includes('PRECONDITION_FAILED'))

/** What the HTTP layer says of each status beside the errors. */
const STATUSES: Record<number, string> = {
  200: 'The result',
  201: 'The result',
  202: 'Accepted: the work is done in the background',
  204: 'Done; no content',
  206: 'The range asked for',
  304: 'If-None-Match names what is there; no content',
}

const NDJSON = 'application/x-ndjson'
const EVENTS = 'text/event-stream'

/** Parts of a document that many operations have in common. */
class Shared {
  readonly components = new Components()
  readonly examples = new Examples(this.components)
  readonly parameters: Record<string, SchemaNode> = {}
  readonly responses: Record<string, SchemaNode> = {}
  readonly commands: ReadonlyMap<string, readonly string[]>

  constructor(operations: readonly Operation[]) {
    this.commands = new Map(commandsOf(operations).map(({ id, words }) => [id, words]))
  }

  /** Refers to a parameter, which is a component under its place and name. */
  parameter(parameter: SchemaNode & { name: string; in: string }): SchemaNode {
    const text = JSON.stringify(parameter)
    for (let count = 1; ; count++) {
      const name = `${parameter.in}.${parameter.name}${count === 1 ? '' : `.${count}`}`
      this.parameters[name] ??= parameter
      if (JSON.stringify(this.parameters[name]) === text) return { $ref: `#/components/parameters/${name}` }
    }
  }

  /** The refusals of a status, which differ by their codes alone. */
  refusal(status: number): SchemaNode {
    const name = `E${status}`
    const codes = [...COMMON_CODES].filter(code => errorEntry(code).status === status)
    this.responses[name] ??= {
      description: `Refused with ${status}`,
      'x-error-codes': codes.length > 0 ? codes : ['REQUEST_REJECTED'],
      content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } },
    }
    return { $ref: `#/components/responses/${name}` }
  }
}

function parametersOf(operation: Operation, shared: Shared): SchemaNode[] {
  const { method, gate } = operation
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
    ...(method === 'post' && gate !== 'public' ? [IDEMPOTENCY_KEY] : []),
    ...(takesIfMatch(operation) ? [IF_MATCH] : []),
  ].map(parameter => shared.parameter(parameter))
}

/** Objects, which are tag filters, have the style `tags[key]=value`. */
function queryParameter(name: string, type: z.ZodType, { components }: Shared) {
  const { description, ...schema } = components.schema(type, 'input')
  return {
    name,
    in: 'query',
    ...(type.safeParse(undefined).success ? {} : { required: true }),
    schema,
    ...(typeof description === 'string' ? { description } : {}),
    ...(schema.type === 'object' ? { style: 'deepObject', explode: true } : {}),
  }
}

const IDEMPOTENCY_KEY = {
  name: 'Idempotency-Key',
  in: 'header',
  schema: { type: 'string', minLength: 1, maxLength: 255 },
  description:
    'A repeat within 24 hours with the same key and body gets the first answer. Where that was lost with its process, the repeat waits for, or streams, what the first request started.',
}

const IF_MATCH = {
  name: 'If-Match',
  in: 'header',
  schema: { type: 'string' },
  description: 'ETag that was read; the request is refused when the record has changed since.',
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

/** The content of an answer, by media types. */
function contentOf(operation: Operation, status: number, shared: Shared): SchemaNode | null {
  const { answers, produces, alsoProduces = {}, stream, kind } = operation
  const { components, examples } = shared
  const type = answers[status]
  const content: SchemaNode = {}
  if (type) {
    const schema = listing(operation, components.schema(type, 'output'), components)
    content[produces === NDJSON ? NDJSON : 'application/json'] = {
      schema,
      example: examples.answered(schema, kind?.name),
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
    content[EVENTS] = { schema, example: examples.answered(schema, kind?.name) }
  }
  return Object.keys(content).length > 0 ? content : null
}

/** The schema of any event of a stream: a component of its own, which tells its events apart by their names. */
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

/** The schema of a list with the columns that a table shows. */
function listing(operation: Operation, schema: SchemaNode, components: Components): SchemaNode {
  if (!pagingOf(operation)) return schema
  const columns = columnsOf(operation, components.resolve(schema), components)
  return columns.length > 0 ? { ...schema, 'x-columns': columns } : schema
}

/** Fields that tell records apart, in the order in which a table shows them. */
const TELLING = [
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
const MOST_COLUMNS = 6

function columnsOf({ kind }: Operation, list: SchemaNode, components: Components): readonly string[] {
  const data = (list.properties as Record<string, SchemaNode> | undefined)?.data
  const item = components.resolve((data?.items ?? {}) as SchemaNode)
  const shown = Object.keys((item.properties ?? {}) as SchemaNode)
  if (kind?.listed?.every(name => shown.includes(name))) return kind.listed
  const telling = TELLING.filter(name => shown.includes(name))
  return [...telling, ...shown.filter(name => !telling.includes(name))].slice(
    0,
    Math.min(MOST_COLUMNS, Math.max(telling.length, 2)),
  )
}

/**
 * The flat call of an operation with a body. The schema of a field is there where no parameter, and no property of the body,
 * of that name has it.
 */
function flatOf(operation: Operation, body: SchemaNode | null, { components }: Shared): SchemaNode[] | null {
  const call = body && flatten(operation)
  if (!call) return null
  const sent = (body.content as Record<string, { schema: SchemaNode }>)['application/json']?.schema
  const properties = (sent && (components.resolve(sent).properties as SchemaNode | undefined)) ?? {}
  return [...call.fields.values()].map(({ name, in: part, field, required, schema }) => ({
    name,
    in: part,
    ...(required ? { required } : {}),
    ...(part === 'body' && !(field in properties && field === name) ? { schema: properties[field] ?? schema } : {}),
  }))
}

/** What clients and command lines need to know beside the request. */
function extensions(operation: Operation, shared: Shared): SchemaNode {
  const { id, body, query, stream, aliasOf, checkedBy, waiting } = operation
  const sends = (name: string) => (name in fieldsOf(body) ? 'body' : name in fieldsOf(query) ? 'query' : null)
  const command = shared.commands.get(id)
  const paged = pagingOf(operation)
  const selector = sends('stream')
  const check = sends('dry_run') ? 'dry_run' : checkedBy
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
  }
}

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
  for (const status of refusals.statuses) responses[status] = shared.refusal(status)
  return {
    operationId: operation.id,
    summary: operation.summary,
    ...(operation.description ? { description: operation.description } : {}),
    tags: [operation.tag],
    'x-iam-action': operation.action,
    ...(operation.alsoActions.length > 0 ? { 'x-iam-also': operation.alsoActions } : {}),
    ...extensions(operation, shared),
    ...(refusals.codes.length > 0 ? { 'x-error-codes': refusals.codes } : {}),
    ...(operation.gate === 'public' ? { security: [] } : {}),
    ...(parameters.length > 0 ? { parameters } : {}),
    ...(body ? { requestBody: body } : {}),
    ...(flat ? { 'x-flat': flat } : {}),
    responses,
  }
}

const errorSchema = () => ({
  type: 'object',
  required: ['error'],
  properties: {
    error: {
      type: 'object',
      description: 'The refusal',
      required: ['code', 'message', 'hint', 'docs_url'],
      properties: {
        code: { type: 'string', description: 'Stable; a key of x-error-codes' },
        message: { type: 'string', description: 'What happened; may change' },
        hint: { type: 'string', description: 'What to do' },
        docs_url: { type: 'string', description: 'Where the code is explained' },
        meta: { type: 'object', additionalProperties: true, description: 'Facts of the occurrence, by code' },
      },
    },
  },
})

/** Makes components of the answers that several operations have, named after their schemas, and returns them. */
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

/** The OpenAPI document of the operations. The same for every caller; built once per process. */
export function openApiDocument(
  operations: readonly Operation[],
  config: Pick<Config, 'DOCS_BASE_URL'>,
  version: string,
): SchemaNode {
  const shared = new Shared(operations)
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
          description: 'A user token, a project key or an OAuth access token.',
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
