import { z } from 'zod'
import { Author } from '../../core/api/authors.ts'
import { jsonOrJsonText } from '../../core/api/json-text.ts'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { withWarnings } from '../../core/api/warnings.ts'
import { GuardrailIds } from '../../identity/guardrail-ids.ts'

export const TOOL_TYPES = ['http', 'client', 'mcp', 'platform', 'pipeline'] as const

export type ToolType = (typeof TOOL_TYPES)[number]

export const HTTP_METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS'] as const

const text = (max = 8192) => z.string().min(1).max(max)

const anObject = z.record(z.string(), z.unknown())

const AwsAuth = z.strictObject({
  type: z.literal('aws_sigv4').describe('Signs each request by AWS Signature Version 4'),
  region: text().describe('Region of the service, such as eu-central-1'),
  service: text().describe('Service that is called, such as execute-api or s3'),
  access_key_id: text().describe('Access key id; may hold secret tokens'),
  secret_access_key: text().describe('Secret access key; may hold secret tokens').meta({ 'x-secret': true }),
  session_token: text()
    .optional()
    .describe('Session token of temporary keys; may hold secret tokens')
    .meta({ 'x-secret': true }),
})

const GcpAuth = z.strictObject({
  type: z.literal('gcp_service_account').describe('Exchanges the key file of a service account for an access token'),
  credentials: text(65_536).describe('The key file, JSON text; usually one secret token'),
  scopes: z.array(text()).min(1).max(50).describe('OAuth scopes of the access token'),
})

const OAuth2Auth = z.strictObject({
  type: z.literal('oauth2_client_credentials').describe('Gets an access token by the client credentials grant'),
  token_url: text().describe('Address of the token endpoint; holds no tokens'),
  client_id: text().describe('Client id; may hold secret tokens'),
  client_secret: text().describe('Client secret; may hold secret tokens').meta({ 'x-secret': true }),
  scope: text().optional().describe('Scopes to ask for, separated by spaces'),
  audience: text().optional().describe('Audience to ask for, where the endpoint wants one'),
})

export const Auth = z.discriminatedUnion('type', [AwsAuth, GcpAuth, OAuth2Auth]).meta({ id: 'ToolAuth' })
export type Auth = z.output<typeof Auth>

const headers = z
  .record(z.string(), z.string().max(16_384))
  .optional()
  .describe('Headers as they are sent; values may hold secret and context tokens')

/** How an http tool is called. */
export const Execute = z
  .strictObject({
    url: text().describe(
      'Absolute http or https address. `{name}` and `${body.name}` behind the host take arguments; secret tokens may stand there too',
    ),
    method: z
      .string()
      .toUpperCase()
      .pipe(z.enum(HTTP_METHODS))
      .optional()
      .describe('GET, POST, PUT, PATCH, DELETE, HEAD or OPTIONS; default POST'),
    headers,
    body_mode: z
      .enum(['json', 'multipart'])
      .optional()
      .describe('How POST, PUT and PATCH send the arguments; default json'),
    auth: Auth.nullish().describe('A credential that is computed for each request'),
    timeout_ms: z
      .int()
      .min(1000)
      .nullish()
      .describe('Longest time of one call, redirects included; at most and by default TOOL_CALL_TIMEOUT_MS'),
    sign: text(255)
      .nullish()
      .describe('A secret token: requests are signed with the secret, as webhooks are, so that the target knows them'),
  })
  .meta({ id: 'ToolExecute' })
export type Execute = z.output<typeof Execute>

/** The server of an mcp tool. */
export const Mcp = z
  .strictObject({
    url: text().describe(
      'Absolute http or https address of a server that speaks MCP over Streamable HTTP; secret tokens may stand behind the host',
    ),
    headers,
    auth: Auth.nullish().describe('A credential that is computed for each request'),
  })
  .meta({ id: 'ToolMcp' })
export type Mcp = z.output<typeof Mcp>

const shared = {
  name: z.string().trim().min(1).max(128).describe('Name, which a model sees; not unique'),
  description: z.string().max(16_384).nullable().describe('What the tool does, for the model'),
  parameters: jsonOrJsonText(anObject)
    .nullable()
    .describe('JSON Schema of the input, draft-07 or 2020-12, `type` object; null takes any object'),
  execute: jsonOrJsonText(Execute).nullable().describe('How an http tool is called'),
  mcp: jsonOrJsonText(Mcp).nullable().describe('The server of an mcp tool'),
  actions: z
    .array(text(255))
    .max(500)
    .nullable()
    .describe(
      'Operations that a platform tool offers, such as `list-actors`; tools of its server that an mcp tool offers, where null is all and an empty list none; ignored elsewhere',
    ),
  denied_actions: z
    .array(text(255))
    .max(500)
    .nullable()
    .describe('Tools of its server that an mcp tool does not offer, whatever `actions` says; ignored elsewhere'),
  // Anything goes in here: what cannot be a header name has a code of its own.
  context_keys: z
    .array(z.unknown())
    .max(64)
    .nullable()
    .describe('Keys of the tool context that are sent along; null is all, an empty list none'),
  preset_parameters: jsonOrJsonText(anObject)
    .nullable()
    .describe('Fixed arguments; they replace what a caller sends under the same key'),
  output_mapping: jsonOrJsonText(anObject)
    .nullable()
    .describe('JSON Logic over `output` and `input` that makes the result; null leaves it as it is'),
  idempotent: z
    .boolean()
    .describe('Whether a call that is repeated under its Idempotency-Key has the effect of one call'),
}

/** `soat` is an older name of `platform`. */
const typed = <const T extends readonly [string, ...string[]]>(types: T, describe: string) =>
  z
    .enum([...types, 'soat'])
    .transform(type => (type === 'soat' ? 'platform' : type) as Exclude<ToolType, 'soat'>)
    .describe(`${describe}; \`soat\` is another word for platform`)

/** A definition inside another: it has no id, cannot be read by itself and lives with what holds it. */
export const InlineTool = z
  .strictObject({
    name: shared.name,
    type: typed(['http', 'mcp', 'platform'], 'http, mcp or platform; default http').optional(),
    description: shared.description.optional(),
    parameters: shared.parameters.optional(),
    execute: shared.execute.optional(),
    mcp: shared.mcp.optional(),
    actions: shared.actions.optional(),
    denied_actions: shared.denied_actions.optional(),
    context_keys: shared.context_keys.optional(),
    preset_parameters: shared.preset_parameters.optional(),
    output_mapping: shared.output_mapping.optional(),
    idempotent: shared.idempotent.optional(),
  })
  .meta({ id: 'InlineTool' })
export type InlineTool = z.output<typeof InlineTool>

/** A definition inside a binding of an agent. */
export const BoundTool = InlineTool.extend({
  type: typed(['http', 'client', 'mcp', 'platform'], 'http, client, mcp or platform; default http').optional(),
}).meta({ id: 'BoundTool' })

/** What is wrong with a step has a code of its own (check-pipeline.ts). */
export const PipelineStep = z
  .strictObject({
    id: z.string().optional().describe('Name of the step: 1 to 64 letters, digits and underscores, unique'),
    tool_id: z.string().nullish().describe('A tool of the project; exactly one of tool_id and tool is set'),
    tool: InlineTool.nullish().describe('A definition of its own'),
    action: text(255).nullish().describe('Operation of a platform tool, tool of the server of an mcp tool'),
    input: anObject.nullish().describe('Arguments; values may be JSON Logic over `input` and `steps`'),
  })
  .meta({ id: 'PipelineStep' })

export const Pipeline = z
  .strictObject({
    steps: z.array(PipelineStep).optional().describe('1 to 50 calls, made in this order'),
    output: z.unknown().optional().describe('JSON Logic over `input` and `steps`; absent: the result of the last step'),
  })
  .meta({ id: 'Pipeline' })
export type Pipeline = z.output<typeof Pipeline>
export type PipelineStep = z.output<typeof PipelineStep>

const fields = {
  ...shared,
  type: typed(TOOL_TYPES, 'http, client, mcp, platform or pipeline; default http'),
  pipeline: jsonOrJsonText(Pipeline).nullable().describe('The calls of a pipeline tool'),
}

const guardrail_ids = GuardrailIds.nullable().describe('Guardrails of every call of the tool; null for none')

export const Tool = record('Tool', {
  name: shared.name,
  type: z.enum(TOOL_TYPES),
  description: shared.description,
  parameters: anObject.nullable(),
  execute: Execute.nullable(),
  mcp: Mcp.nullable().describe('The MCP server'),
  actions: z.array(z.string()).nullable(),
  denied_actions: z.array(z.string()).nullable(),
  context_keys: z.array(z.string()).nullable().describe('Keys of the tool context that are sent along; null is all'),
  preset_parameters: anObject.nullable(),
  pipeline: Pipeline.nullable().describe('The steps of a pipeline'),
  output_mapping: anObject.nullable().describe('JSON Logic that makes the result; null leaves it as it is'),
  guardrail_ids: z.array(z.string()).nullable(),
  idempotent: z.boolean(),
})

/** What a write of a tool answers. */
export const ToolWithWarnings = withWarnings(Tool, 'ToolWithWarnings')

export const ToolInput = createBody('ToolInput', { ...fields, guardrail_ids }, ['name'], {
  name: 'get_order',
  type: 'http',
  description: 'Looks an order up',
  parameters: { type: 'object', properties: { order_id: { type: 'string' } }, required: ['order_id'] },
  http: { url: 'https://shop.example/orders/{order_id}', method: 'GET' },
})

export const ToolPatch = patchBody(
  'ToolPatch',
  { ...fields, guardrail_ids },
  { description: 'Looks an order up by its number' },
)
export type ToolPatch = z.output<typeof ToolPatch>

export const CallInput = z
  .strictObject({
    action: text(255)
      .nullish()
      .describe('Operation of a platform tool, tool of the server of an mcp tool; other types ignore it'),
    input: anObject.nullish().describe('Arguments; default none'),
  })
  .meta({ id: 'ToolCallInput', example: { input: { order_id: '1042' } } })

export const ToolAction = z
  .object({
    name: z.string(),
    resolved_name: z.string().describe('The name as models see it'),
    description: z.string().nullable(),
    input_schema: anObject,
  })
  .meta({ id: 'ToolAction' })
export type ToolAction = z.output<typeof ToolAction>

export const toolKind = kind({
  name: 'tool',
  prefix: 'tool',
  table: 'tools',
  missing: 'TOOL_NOT_FOUND',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    // A secret may go although a token names it: a call then says so.
    { kind: 'secret', column: 'secret_ids', many: true, on_delete: 'null' },
    { kind: 'guardrail', column: 'guardrail_ids', many: true, on_delete: 'block' },
    // Nor does a step hold a tool.
    { kind: 'tool', column: 'step_tool_ids', many: true, on_delete: 'null', grantable: true },
  ],
  record: Tool,
  hidden: { secret_ids: z.array(z.string()), step_tool_ids: z.array(z.string()).nullable(), author: Author },
  events: ['created', 'updated', 'deleted'],
  eventNotes: 'as GET shows it, secret tokens unresolved',
})

export type ToolRow = z.output<typeof toolKind.row>

/** What a tool is, whether a record or inline. */
export type ToolDefinition = Pick<
  ToolRow,
  | 'name'
  | 'type'
  | 'description'
  | 'parameters'
  | 'execute'
  | 'mcp'
  | 'actions'
  | 'denied_actions'
  | 'context_keys'
  | 'preset_parameters'
  | 'pipeline'
  | 'output_mapping'
  | 'idempotent'
>

/** A definition as its author gave it. */
type Given = Partial<Omit<ToolDefinition, 'context_keys'>> & { name: string; context_keys?: readonly unknown[] | null }

/** A definition with everything that its author left out. */
export const withToolDefaults = (given: Given): ToolDefinition => ({
  name: given.name,
  type: given.type ?? 'http',
  description: given.description ?? null,
  parameters: given.parameters ?? null,
  execute: given.execute ?? null,
  mcp: given.mcp ?? null,
  actions: given.actions ?? null,
  denied_actions: given.denied_actions ?? null,
  // Checked to be texts before anything is kept.
  context_keys: (given.context_keys as string[] | null | undefined) ?? null,
  preset_parameters: given.preset_parameters ?? null,
  pipeline: given.pipeline ?? null,
  output_mapping: given.output_mapping ?? null,
  idempotent: given.idempotent ?? false,
})
