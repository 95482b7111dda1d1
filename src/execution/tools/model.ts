import { z } from 'zod'
import { Author } from '#core/api/authors.ts'
import { jsonOrJsonText } from '#core/api/json-text.ts'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { withWarnings } from '#core/api/warnings.ts'
import { GuardrailIds } from '#identity/projects/guardrail-ids.ts'

export const TOOL_TYPES = ['http', 'client', 'mcp', 'platform', 'pipeline'] as const

export type ToolType = (typeof TOOL_TYPES)[number]

const HTTP_METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS'] as const

const text = (max = 8192) => z.string().min(1).max(max)

const jsonObject = z.record(z.string(), z.unknown())

const AwsAuth = z.strictObject({
  type: z.literal('aws_sigv4').describe('Signs each request with AWS Signature Version 4'),
  region: text().describe('Region of the service, for example eu-central-1'),
  service: text().describe('Service to call, for example execute-api or s3'),
  access_key_id: text().describe('Access key ID; may contain secret tokens'),
  secret_access_key: text().describe('Secret access key; may contain secret tokens').meta({ 'x-secret': true }),
  session_token: text()
    .optional()
    .describe('Session token of temporary keys; may contain secret tokens')
    .meta({ 'x-secret': true }),
})

const GcpAuth = z.strictObject({
  type: z.literal('gcp_service_account').describe('Exchanges the key file of a service account for an access token'),
  credentials: text(65_536).describe('Key file as JSON text, usually a single secret token'),
  scopes: z.array(text()).min(1).max(50).describe('OAuth scopes of the access token'),
})

const OAuth2Auth = z.strictObject({
  type: z.literal('oauth2_client_credentials').describe('Requests an access token with the client credentials grant'),
  token_url: text().describe('URL of the token endpoint, without secret tokens'),
  client_id: text().describe('Client ID; may contain secret tokens'),
  client_secret: text().describe('Client secret; may contain secret tokens').meta({ 'x-secret': true }),
  scope: text().optional().describe('Requested scopes, separated by spaces'),
  audience: text().optional().describe('Requested audience, if the endpoint requires one'),
})

export const Auth = z.discriminatedUnion('type', [AwsAuth, GcpAuth, OAuth2Auth]).meta({ id: 'ToolAuth' })
export type Auth = z.output<typeof Auth>

const headers = z
  .record(z.string(), z.string().max(16_384))
  .optional()
  .describe('Headers of requests; values may contain secret and context tokens')

/** Request configuration of an http tool. */
export const Execute = z
  .strictObject({
    url: text().describe(
      'Absolute http or https URL. After the host, `{name}` and `${body.name}` are replaced by arguments, and secret tokens are allowed.',
    ),
    method: z
      .string()
      .toUpperCase()
      .pipe(z.enum(HTTP_METHODS))
      .optional()
      .describe('GET, POST, PUT, PATCH, DELETE, HEAD or OPTIONS. Default POST.'),
    headers,
    body_mode: z
      .enum(['json', 'multipart'])
      .optional()
      .describe('Encoding of arguments in POST, PUT and PATCH requests. Default json.'),
    auth: Auth.nullish().describe('Credential computed for each request'),
    timeout_ms: z
      .int()
      .min(1000)
      .nullish()
      .describe('Timeout of one call in milliseconds, redirects included. Default and maximum TOOL_CALL_TIMEOUT_MS.'),
    sign: text(255)
      .nullish()
      .describe(
        'Secret token whose value signs requests like webhook deliveries, so that the target can authenticate them',
      ),
  })
  .meta({ id: 'ToolExecute' })
export type Execute = z.output<typeof Execute>

/** Server of an mcp tool. */
export const Mcp = z
  .strictObject({
    url: text().describe(
      'Absolute http or https URL of an MCP server with Streamable HTTP. Secret tokens are allowed after the host.',
    ),
    headers,
    auth: Auth.nullish().describe('Credential computed for each request'),
  })
  .meta({ id: 'ToolMcp' })
export type Mcp = z.output<typeof Mcp>

const shared = {
  name: z.string().trim().min(1).max(128).describe('Name that models see; not unique'),
  description: z.string().max(16_384).nullable().describe('Description for models'),
  parameters: jsonOrJsonText(jsonObject)
    .nullable()
    .describe('JSON Schema (draft-07 or 2020-12) of the input, with type `object`; null allows any object'),
  execute: jsonOrJsonText(Execute).nullable().describe('Request configuration of an http tool'),
  mcp: jsonOrJsonText(Mcp).nullable().describe('Server of an mcp tool'),
  actions: z
    .array(text(255))
    .max(500)
    .nullable()
    .describe(
      'Operations of a platform tool, such as `list-actors`, or exposed server tools of an mcp tool: null for all, empty for none. Ignored for other types.',
    ),
  denied_actions: z
    .array(text(255))
    .max(500)
    .nullable()
    .describe('Server tools that an mcp tool excludes, in precedence over `actions`. Ignored for other types.'),
  // Accepts anything: an invalid header name has a separate error code.
  context_keys: z
    .array(z.unknown())
    .max(64)
    .nullable()
    .describe('Keys of the tool context that are forwarded; null for all, empty for none'),
  preset_parameters: jsonOrJsonText(jsonObject)
    .nullable()
    .describe("Fixed arguments, which replace the caller's arguments with the same name"),
  output_mapping: jsonOrJsonText(jsonObject)
    .nullable()
    .describe('JSON Logic over `output` and `input` that computes the result; null for the unchanged output'),
  idempotent: z.boolean().describe('Whether a repeated call with the same Idempotency-Key has no further effect'),
}

/** Tool type; `soat` is a former name of `platform`. */
const toolType = <const T extends readonly [string, ...string[]]>(types: T, describe: string) =>
  z
    .enum([...types, 'soat'])
    .transform(type => (type === 'soat' ? 'platform' : type) as Exclude<ToolType, 'soat'>)
    .describe(`${describe}. \`soat\` is an alias of platform.`)

/** Definition inside another resource: it has no id and cannot be read separately. */
export const InlineTool = z
  .strictObject({
    name: shared.name,
    type: toolType(['http', 'mcp', 'platform'], 'http, mcp or platform, default http').optional(),
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

/** Definition inside a binding of an agent. */
export const BoundTool = InlineTool.extend({
  type: toolType(['http', 'client', 'mcp', 'platform'], 'http, client, mcp or platform, default http').optional(),
}).meta({ id: 'BoundTool' })

/** An invalid step has a separate error code (check-pipeline.ts). */
export const PipelineStep = z
  .strictObject({
    id: z.string().optional().describe('Name of the step, unique. 1 to 64 letters, digits and underscores.'),
    tool_id: z.string().nullish().describe('ID of a tool of the project. Exactly one of tool_id and tool must be set.'),
    tool: InlineTool.nullish().describe('Inline definition'),
    action: text(255).nullish().describe('Operation of a platform tool, or tool of an mcp server'),
    input: jsonObject.nullish().describe('Arguments; values may be JSON Logic expressions over `input` and `steps`'),
  })
  .meta({ id: 'PipelineStep' })

export const Pipeline = z
  .strictObject({
    steps: z.array(PipelineStep).optional().describe('Calls in order. 1 to 50 steps.'),
    output: z
      .unknown()
      .optional()
      .describe('JSON Logic over `input` and `steps` that computes the result. Default the result of the last step.'),
  })
  .meta({ id: 'Pipeline' })
export type Pipeline = z.output<typeof Pipeline>
export type PipelineStep = z.output<typeof PipelineStep>

const fields = {
  ...shared,
  type: toolType(TOOL_TYPES, 'http, client, mcp, platform or pipeline, default http'),
  pipeline: jsonOrJsonText(Pipeline).nullable().describe('Steps of a pipeline tool'),
}

const guardrail_ids = GuardrailIds.nullable().describe('Guardrails of every call of the tool; null for none')

export const Tool = record('Tool', {
  name: shared.name,
  type: z.enum(TOOL_TYPES),
  description: shared.description,
  parameters: jsonObject.nullable(),
  execute: Execute.nullable(),
  mcp: Mcp.nullable().describe('Server of an mcp tool'),
  actions: z.array(z.string()).nullable(),
  denied_actions: z.array(z.string()).nullable(),
  context_keys: z.array(z.string()).nullable().describe('Keys of the tool context that are forwarded; null for all'),
  preset_parameters: jsonObject.nullable(),
  pipeline: Pipeline.nullable().describe('Steps of a pipeline tool'),
  output_mapping: jsonObject.nullable().describe('JSON Logic that computes the result; null for the unchanged output'),
  guardrail_ids: z.array(z.string()).nullable(),
  idempotent: z.boolean(),
})

/** Response of a tool write. */
export const ToolWithWarnings = withWarnings(Tool, 'ToolWithWarnings')

export const ToolInput = createBody('ToolInput', { ...fields, guardrail_ids }, ['name'], {
  name: 'get_order',
  type: 'http',
  description: 'Returns an order',
  parameters: { type: 'object', properties: { order_id: { type: 'string' } }, required: ['order_id'] },
  http: { url: 'https://shop.example/orders/{order_id}', method: 'GET' },
})

export const ToolPatch = patchBody(
  'ToolPatch',
  { ...fields, guardrail_ids },
  { description: 'Returns an order by its number' },
)
export type ToolPatch = z.output<typeof ToolPatch>

export const CallInput = z
  .strictObject({
    action: text(255)
      .nullish()
      .describe('Operation of a platform tool, or tool of an mcp server. Ignored for other types.'),
    input: jsonObject.nullish().describe('Arguments. Default empty.'),
  })
  .meta({ id: 'ToolCallInput', example: { input: { order_id: '1042' } } })

export const ToolAction = z
  .object({
    name: z.string(),
    resolved_name: z.string().describe('Name that models see'),
    description: z.string().nullable(),
    input_schema: jsonObject,
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
    // Deletable while a token references it: the call then reports the missing secret.
    { kind: 'secret', column: 'secret_ids', many: true, on_delete: 'null' },
    { kind: 'guardrail', column: 'guardrail_ids', many: true, on_delete: 'block' },
    // Steps do not prevent a deletion either.
    { kind: 'tool', column: 'step_tool_ids', many: true, on_delete: 'null', grantable: true },
  ],
  record: Tool,
  hidden: { secret_ids: z.array(z.string()), step_tool_ids: z.array(z.string()).nullable(), author: Author },
  events: ['created', 'updated', 'deleted'],
  eventNotes: 'same fields as GET, secret tokens unresolved',
})

export type ToolRow = z.output<typeof toolKind.row>

/** Definition of a tool, of a record or inline. */
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

/** Definition as submitted. */
type SubmittedDefinition = Partial<Omit<ToolDefinition, 'context_keys'>> & {
  name: string
  context_keys?: readonly unknown[] | null
}

/** Returns a definition with defaults for omitted fields. */
export const withToolDefaults = (definition: SubmittedDefinition): ToolDefinition => ({
  name: definition.name,
  type: definition.type ?? 'http',
  description: definition.description ?? null,
  parameters: definition.parameters ?? null,
  execute: definition.execute ?? null,
  mcp: definition.mcp ?? null,
  actions: definition.actions ?? null,
  denied_actions: definition.denied_actions ?? null,
  // Checked to be strings before it is stored.
  context_keys: (definition.context_keys as string[] | null | undefined) ?? null,
  preset_parameters: definition.preset_parameters ?? null,
  pipeline: definition.pipeline ?? null,
  output_mapping: definition.output_mapping ?? null,
  idempotent: definition.idempotent ?? false,
})
