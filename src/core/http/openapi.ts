import { z } from 'zod'
import type { Config } from '../../config.ts'
import { type ErrorCode, errorCodes, errorDocument, errorEntry } from '../api/errors.ts'
import type { Operation } from '../api/operation.ts'

type Json = Record<string, unknown>

/** The JSON Schema of a zod type; named types (`.meta({ id })`) move to the components and are referred to. */
function schemaOf(type: z.ZodType, io: 'input' | 'output', components: Json): Json {
  const schema = z.toJSONSchema(type, { io, unrepresentable: 'any', reused: 'inline', target: 'draft-2020-12' }) as Json
  delete schema.$schema
  const defs = (schema.$defs ?? {}) as Record<string, Json>
  delete schema.$defs
  for (const [name, definition] of Object.entries(defs)) components[name] ??= moveRefs(definition)
  const id = schema.id as string | undefined
  if (id) {
    delete schema.id
    components[id] ??= moveRefs(schema)
    return { $ref: `#/components/schemas/${id}` }
  }
  return moveRefs(schema)
}

function moveRefs(value: Json): Json {
  const walk = (node: unknown): unknown => {
    if (Array.isArray(node)) return node.map(walk)
    if (typeof node !== 'object' || node === null) return node
    const out: Json = {}
    for (const [key, item] of Object.entries(node)) {
      if (key === 'id' && typeof item === 'string' && 'type' in node) continue
      out[key] =
        key === '$ref' && typeof item === 'string' ? item.replace('#/$defs/', '#/components/schemas/') : walk(item)
    }
    return out
  }
  return walk(value) as Json
}

const pageParameters = ({ default: size, max }: Operation['pageSize']): Json[] => [
  {
    name: 'limit',
    in: 'query',
    schema: { type: 'integer', minimum: 1, default: size },
    description: `Page size; a larger value than ${max} is taken as ${max}.`,
  },
  {
    name: 'offset',
    in: 'query',
    schema: { type: 'integer', minimum: 0, default: 0 },
    description: 'Entries to leave out before the page begins.',
  },
]

const timeParameters: Json[] = [
  {
    name: 'from',
    in: 'query',
    schema: { type: 'string', format: 'date-time' },
    description: 'Inclusive lower bound on created_at.',
  },
  {
    name: 'to',
    in: 'query',
    schema: { type: 'string', format: 'date-time' },
    description: 'Inclusive upper bound on created_at.',
  },
]

/** Parameters out of an operation's query schema. Objects (tag filters) use the deepObject style: `tags[key]=value`. */
function queryParameters(operation: Operation, components: Json): Json[] {
  if (!operation.query) return []
  const schema = schemaOf(operation.query, 'input', components)
  const required = new Set((schema.required as string[] | undefined) ?? [])
  return Object.entries((schema.properties as Record<string, Json> | undefined) ?? {}).map(([name, property]) => ({
    name,
    in: 'query',
    required: required.has(name),
    schema: property,
    ...(typeof property.description === 'string' ? { description: property.description } : {}),
    ...(property.type === 'object' ? { style: 'deepObject', explode: true } : {}),
  }))
}

/** What a segment of a path names: `agent_id` is the id of an agent. */
const pathDescription = (name: string): string =>
  name.endsWith('_id') ? `Id of the ${name.slice(0, -3).replaceAll('_', ' ')}` : `The ${name.replaceAll('_', ' ')}`

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

const WITHOUT_BODY: Record<string, string> = {
  204: 'Done; no content.',
  304: 'If-None-Match names what is there; no content.',
}

/** What the HTTP layer answers for a body that does not end, is too large, or is encoded in a way it does not know. */
const BODY_REFUSALS = [408, 413, 415]

/** The codes of every refusal of an operation, by status. */
function refusalsOf(operation: Operation): Map<number, Set<ErrorCode>> {
  const refusals = new Map<number, Set<ErrorCode>>()
  const add = (status: number, code: ErrorCode) =>
    refusals.set(status, (refusals.get(status) ?? new Set<ErrorCode>()).add(code))
  for (const code of [...pipelineCodes(operation), ...operation.raises]) add(errorEntry(code).status, code)
  for (const status of [...(operation.body ? BODY_REFUSALS : []), ...operation.rejects]) add(status, 'REQUEST_REJECTED')
  return refusals
}

/** Bodies of other types than JSON and forms are the bytes themselves. */
const describesFields = (type: string): boolean => type === 'application/json' || type === 'multipart/form-data'

/** Whether a request says which project it is about: in its path, or as `project_id`. */
const namesProject = ({ shape, kind, gate }: Operation): boolean =>
  shape === 'item' ? kind?.name === 'project' : gate === 'policy' || gate === 'owner'

const takesIfMatch = ({ shape, method, raises }: Operation): boolean =>
  shape === 'item' && (['put', 'patch', 'delete'].includes(method) || raises.includes('PRECONDITION_FAILED'))

/** The OpenAPI document of the operations. The same for every caller; built once per process. */
export function openApiDocument(
  operations: readonly Operation[],
  config: Pick<Config, 'DOCS_BASE_URL'>,
  version: string,
): Json {
  const components: Json = {
    Error: {
      type: 'object',
      required: ['error'],
      properties: {
        error: {
          type: 'object',
          required: ['code', 'message', 'hint', 'docs_url'],
          properties: {
            code: { type: 'string', enum: errorCodes() },
            message: { type: 'string' },
            hint: { type: 'string' },
            docs_url: { type: 'string' },
            meta: { type: 'object', additionalProperties: true },
          },
        },
      },
    },
  }
  const paths: Record<string, Json> = {}
  for (const operation of operations) {
    const path = `/api/v1${operation.path}`
    paths[path] ??= {}
    const parameters: Json[] = [...operation.path.matchAll(/\{(\w+)\}/g)].map(match => ({
      name: match[1],
      in: 'path',
      required: true,
      schema: { type: 'string' },
      description: pathDescription(match[1]),
    }))
    parameters.push(...queryParameters(operation, components))
    if (
      operation.shape === 'list' &&
      operation.gate === 'policy' &&
      !parameters.some(parameter => parameter.name === 'project_id')
    ) {
      parameters.push({
        name: 'project_id',
        in: 'query',
        schema: { type: 'string' },
        description: 'Default: the project of the credential, or every project it may read.',
      })
    }
    if (operation.paged)
      parameters.push(...pageParameters(operation.pageSize), ...(operation.timed ? timeParameters : []))
    if (operation.method === 'post' && operation.gate !== 'public')
      parameters.push({
        name: 'Idempotency-Key',
        in: 'header',
        schema: { type: 'string', minLength: 1, maxLength: 255 },
        description:
          'A repeat within 24 hours with the same key and body gets the first answer. Where that was lost with its process, the repeat waits for, or streams, what the first request started.',
      })
    if (takesIfMatch(operation))
      parameters.push({
        name: 'If-Match',
        in: 'header',
        schema: { type: 'string' },
        description: 'ETag that was read; the request is refused when the record has changed since.',
      })
    const responses: Record<string, Json> = {}
    for (const [status, body] of Object.entries(operation.answers)) {
      responses[status] = {
        description: WITHOUT_BODY[status] ?? operation.summary,
        ...(body
          ? {
              content: {
                'application/json': { schema: schemaOf(body, 'output', components) },
                ...(operation.produces ? { [operation.produces]: { schema: { type: 'string' } } } : {}),
              },
            }
          : operation.produces && (status === '200' || status === '206')
            ? { content: { [operation.produces]: { schema: { type: 'string' } } } }
            : {}),
      }
    }
    for (const [status, codes] of refusalsOf(operation))
      responses[status] = {
        description: [...codes].sort().join(', '),
        content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } },
      }
    paths[path][operation.method] = {
      operationId: operation.id,
      summary: operation.summary,
      ...(operation.description ? { description: operation.description } : {}),
      tags: [operation.tag],
      'x-iam-action': operation.action,
      ...(operation.alsoActions.length > 0 ? { 'x-iam-also': operation.alsoActions } : {}),
      ...(operation.gate === 'public' ? { security: [] } : {}),
      ...(parameters.length > 0 ? { parameters } : {}),
      ...(operation.body
        ? {
            requestBody: {
              required: !operation.bodyOptional,
              content: Object.fromEntries(
                operation.consumes.map(type => [
                  type,
                  {
                    schema: describesFields(type)
                      ? schemaOf(operation.body as z.ZodType, 'input', components)
                      : { type: 'string', format: 'binary' },
                  },
                ]),
              ),
            },
          }
        : {}),
      responses,
    }
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
    tags: [...new Set(operations.map(operation => operation.tag))].map(name => ({ name })),
    paths,
    components: {
      securitySchemes: { bearer: { type: 'http', scheme: 'bearer', description: 'A user token or a project key.' } },
      schemas: components,
    },
    'x-error-codes': errorDocument(config.DOCS_BASE_URL),
  }
}
