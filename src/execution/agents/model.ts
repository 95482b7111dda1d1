import { z } from 'zod'
import { Author } from '#core/api/authors.ts'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { withWarnings } from '#core/api/warnings.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { expectedVersion, versionLabel } from '#core/resources/version.ts'
import { GuardrailIds } from '#identity/projects/guardrail-ids.ts'
import type { VendorSettings } from '../providers/model-messages.ts'
import { VendorTools } from '../providers/options/vendor-tool-settings.ts'
import { BoundTool } from '../tools/model.ts'
import { A2aFace } from './a2a-face.ts'
import { ContextPolicy } from './context-policy.ts'
import { KnowledgeConfig } from './knowledge.ts'
import { MediaSettings } from './media.ts'

const MAX_JSON_BYTES = 64 * 1024

const fitsJson = (value: unknown) => Buffer.byteLength(JSON.stringify(value)) <= MAX_JSON_BYTES
const positive = z.int().min(1).max(2_147_483_647)

const toolName = z.string().min(1).max(255).describe('Name of the tool as the model sees it')
const ForcedTool = z.strictObject({ type: z.literal('tool').describe('Always `tool`'), tool_name: toolName })

const AllowedTools = z.strictObject({
  type: z.literal('allowed_tools').describe('Always `allowed_tools`'),
  tool_names: z.array(toolName).min(1).max(128).describe('Tools that may be called; the others may not'),
  mode: z.enum(['auto', 'required']).optional().describe('Whether one of them must be called. Default `auto`.'),
})

/** How a model may use its tools. */
const ToolChoice = z.union([z.enum(['auto', 'required']), ForcedTool, AllowedTools])
/** Tool choice of a single step, which may also exclude tools. */
export const StepToolChoice = z.union([z.enum(['auto', 'required', 'none']), ForcedTool, AllowedTools])
export type ToolChoice = z.output<typeof StepToolChoice>

const choiceText =
  '`auto` (same as null), `required`, `{ type: "tool", tool_name }`, or `{ type: "allowed_tools", tool_names, mode }`'
export const toolIds = z.array(z.string().min(1).max(255)).max(128)

export const ToolBinding = z
  .strictObject({
    tool_id: z
      .string()
      .min(1)
      .max(255)
      .optional()
      .describe('ID of a tool of the project. Exactly one of tool_id and tool must be set.'),
    tool: BoundTool.optional().describe('Inline definition, always active'),
    label: z
      .string()
      .trim()
      .min(1)
      .max(80)
      .optional()
      .describe('Activity shown to end users while a tool of the binding runs, such as `Checking the order`'),
  })
  .meta({ id: 'ToolBinding' })
export type ToolBinding = z.output<typeof ToolBinding>

export const StepRule = z
  .strictObject({
    step: z.int().min(1).max(10_000).describe('Step number within the turn, starting at 1'),
    tool_choice: StepToolChoice.optional().describe(`${choiceText}, or \`none\``),
    active_tool_ids: toolIds.optional().describe('Bound tools that the step may call. Empty means all.'),
  })
  .refine(rule => rule.tool_choice !== undefined || rule.active_tool_ids !== undefined, {
    message: 'tool_choice or active_tool_ids is required',
  })
  .meta({ id: 'StepRule' })
export type StepRule = z.output<typeof StepRule>

export const StepRules = z
  .array(StepRule)
  .max(100)
  .refine(rules => new Set(rules.map(({ step }) => step)).size === rules.length, 'must have each step only once')

const HasToolCall = z.strictObject({
  type: z.literal('has_tool_call').describe('Stops the turn after a step that called this tool'),
  tool_name: toolName,
})
const MaxChain = z.strictObject({
  type: z.literal('max_chain_generations').describe('Limits the number of generations that continue one another'),
  max_generations: z.int().min(2).describe('Maximum number of generations in a chain, at least 2'),
})
export const StopCondition = z.discriminatedUnion('type', [HasToolCall, MaxChain]).meta({ id: 'StopCondition' })
export type StopCondition = z.output<typeof StopCondition>
/** Stop conditions of a single turn. */
export const TurnStopConditions = z.array(HasToolCall).max(20)

/** Settings of single requests that an agent may let through. */
const REQUEST_SETTINGS = [
  ...['temperature', 'top_p', 'seed', 'stop', 'presence_penalty', 'frequency_penalty', 'logit_bias'],
  ...['reasoning_effort', 'verbosity', 'service_tier', 'prompt_cache_key', 'logprobs', 'top_logprobs'],
] as [RequestSetting, ...RequestSetting[]]
export type RequestSetting = 'temperature' | 'top_p' | 'seed' | 'stop' | keyof VendorSettings

const fields = {
  name: z.string().trim().min(1).max(255).nullable().describe('Display name'),
  instructions: z.string().max(65_536).nullable().describe('System prompt'),
  ai_provider_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe('AI provider that serves the model. Null with a model route or with the default route of the project.'),
  model_route_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe(
      'Model route for calls, instead of a provider. Without either, calls use the default route of the project.',
    ),
  model: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe(
      'Model of the provider; null for its default_model. Cannot be set with a model route, whose targets have their own models.',
    ),
  tool_bindings: z
    .array(ToolBinding)
    .max(128)
    .nullable()
    .describe('Tools that the model may call: tools of the project and inline definitions. Replaced as a whole.'),
  active_tool_ids: toolIds
    .nullable()
    .describe('Bound tools that steps may call; null or empty for all. Inline definitions are always active.'),
  tool_choice: ToolChoice.nullable().describe(
    `${choiceText}. A forced call requires a \`has_tool_call\` stop condition.`,
  ),
  stop_conditions: z
    .array(StopCondition)
    .max(20)
    .nullable()
    .describe('Conditions that end a turn or a chain, in addition to max_steps'),
  step_rules: StepRules.nullable().describe('Settings of single steps'),
  knowledge_config: KnowledgeConfig.nullable().describe(
    'Sources searched before each turn, and the memory store for writes; null for none. Replaced as a whole.',
  ),
  boundary_policy: z
    .record(z.string(), z.unknown())
    .nullable()
    .describe(
      'Policy document that limits the platform tools of the agent, in addition to the permissions of its principal',
    ),
  guardrail_ids: GuardrailIds.nullable().describe('Guardrails of every tool call of the agent; null for none'),
  on_approval_expiry: z
    .enum(['terminate', 'react'])
    .nullable()
    .describe(
      'Handling of an expired approval: `terminate` — the turn fails; `react` — the expiry is reported to the model. Null means `terminate`.',
    ),
  max_steps: positive.nullable().describe('Maximum number of model calls in a turn; null for 20'),
  temperature: z.number().min(0).max(2).nullable().describe('Sampling temperature; omitted from calls if null'),
  max_output_tokens: positive.nullable().describe('Maximum number of tokens in an answer; omitted from calls if null'),
  top_p: z.number().min(0).max(1).nullable().describe('Nucleus sampling probability; omitted from calls if null'),
  seed: z.int().nullable().describe('Seed for reproducible answers, if the vendor supports one'),
  provider_options: z
    .record(z.string(), z.record(z.string(), z.unknown()))
    .refine(fitsJson, 'must be at most 64 KiB')
    .nullable()
    .describe(
      'Vendor options by provider type, in the spelling of the vendor: `{ "anthropic": { "thinking": { "type": "enabled", "budget_tokens": 2048 } } }`. Unknown options and invalid values are refused. At most 64 KiB.',
    ),
  vendor_tools: VendorTools.nullable().describe(
    'Tools that the vendor of the model runs itself: `web_search` and `code_execution`, for vendors that have them. Null for none.',
  ),
  // Accepts anything: an invalid JSON Schema has a separate error code.
  output_schema: z.unknown().describe('JSON Schema (draft-07 or 2020-12) of final answers; null for text'),
  prompt_caching: z
    .strictObject({
      enabled: z.boolean().describe('Whether requests mark what the vendor caches'),
      ttl: z
        .enum(['5m', '1h'])
        .optional()
        .describe('How long a prefix is cached: 5 minutes (default), or an hour, which costs more to write'),
    })
    .nullable()
    .describe(
      'Caching of the tools, the instructions and the messages that requests repeat. Null: enabled for requests with tools where the vendor charges less for cached tokens and caches only what requests mark (Anthropic, and its models on Bedrock). Other vendors cache by themselves.',
    ),
  max_context_messages: positive
    .nullable()
    .describe('Maximum number of messages in the model context, newest first; null for all'),
  single_session_per_actor: z.boolean().describe('Whether an end user has at most one open session with the agent'),
  trace_content_mode: z
    .enum(['full', 'none'])
    .nullable()
    .describe(
      'Storage of turn content: `full` — stored; `none` — not stored. Null for the setting of the project, which cannot be exceeded.',
    ),
  media: MediaSettings.nullable().describe(
    'Handling of images and files in messages. Null for all media types with the fallback `extract`.',
  ),
  context_policy: ContextPolicy.nullable().describe(
    'Bound of the model context in tokens, and the handling of older messages; null for no bound. Replaced as a whole.',
  ),
  auto_title: z
    .boolean()
    .describe('Whether sessions without a name get one from a model call after their first completed turn'),
  description: z.string().max(2000).nullable().describe('Description of the agent for end users'),
  avatar_file_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe('ID of an image file (PNG, JPEG, WebP or GIF) that front ends show for the agent'),
  greeting: z
    .string()
    .max(4000)
    .nullable()
    .describe('Text that front ends show in an empty session. It is not a message, and the model does not see it.'),
  suggestions: z
    .array(z.string().trim().min(1).max(200))
    .max(6)
    .nullable()
    .describe('Messages that front ends offer to the end user, at most 6'),
  end_user_activity: z
    .enum(['none', 'labels'])
    .describe(
      'Tool calls in session streams for callers without `generations:GetGeneration`: `none` — hidden; `labels` — the label of the binding, without the name of the tool. Default `none`.',
    ),
  client_instructions: z
    .enum(['ignore', 'block', 'system'])
    .describe(
      'Use of system messages of clients at the OpenAI mount: `ignore`; `block` — a marked text of the user before the history (default); `system` — added to the instructions, except for end users',
    ),
  accept_client_tools: z.boolean().describe('Whether callers may bring their own client tools'),
  request_settings: z
    .array(z.enum(REQUEST_SETTINGS))
    .max(REQUEST_SETTINGS.length)
    .nullable()
    .describe(
      'Model settings that requests at the OpenAI mount may set; null for none. A lower limit of output tokens always applies.',
    ),
  shared_state: z
    .boolean()
    .describe(
      'Whether the model sees the state that a session shares with its AG-UI client, and may change it by the tool `update_state`',
    ),
  a2a: A2aFace.nullable().describe('Service to clients of the A2A protocol; null for none. Replaced as a whole.'),
}

/** Two versions that share the turns of an agent. */
export const ActiveRelease = z
  .object({
    stable_version: z.int().describe('Version for the remaining callers'),
    canary_version: z.int().describe('Version for the canary share of callers'),
    canary_percent: z.int().describe('Percentage of end users that get the canary version'),
    promotion_gate: z
      .string()
      .nullable()
      .describe('Eval that the canary must pass before its promotion; null for none'),
    started_at: z.iso.datetime(),
    started_by: z.string().nullable().describe('User that started the release; for a key its owner'),
  })
  .meta({ id: 'ActiveRelease' })
export type ActiveRelease = z.output<typeof ActiveRelease>

export const Agent = record('Agent', {
  ...fields,
  output_schema: z.record(z.string(), z.unknown()).nullable(),
  version: z.int().describe('Version number of the configuration, starting at 1'),
  active_release: ActiveRelease.nullable().describe(
    'Release that is served instead of this configuration; null without one',
  ),
})

/** Fields of a shared agent that other projects see. */
export const AgentProjection = z.object({ id: z.string(), name: z.string().nullable() }).meta({ id: 'AgentProjection' })

/** Response of an agent write. */
export const AgentWithWarnings = withWarnings(Agent, 'AgentWithWarnings')

export const AgentPatch = patchBody(
  'AgentPatch',
  { ...fields, version_label: versionLabel, expected_version: expectedVersion },
  { instructions: 'Answer briefly, from the help pages, and name the page.' },
)

export const AgentInput = createBody('AgentInput', { ...fields, version_label: versionLabel }, [], {
  name: 'Support desk',
  ai_provider_id: 'aip_01k5p3vd7r9hj2x8m4qcw6tz0e',
  model: 'gpt-5-mini',
  instructions: 'Answer briefly, from the help pages.',
  tool_bindings: [{ tool_id: 'tool_01k5p3vd7r9hj2x8m4qcw6tz0e' }],
})

/** Configuration of an agent: all writable fields, which a version stores. */
export const AgentConfig = z.object(fields)
export type AgentConfig = Pick<AgentRow, keyof typeof fields>
export const configFields = Object.keys(fields) as (keyof AgentConfig)[]

/** Values of unset fields that are not null. */
export const AGENT_DEFAULTS: Partial<AgentConfig> = {
  single_session_per_actor: false,
  auto_title: false,
  end_user_activity: 'none',
  client_instructions: 'block',
  accept_client_tools: false,
  shared_state: false,
}

/**
 * Returns the configuration of a stored version in the fields of this release. Fields that the version lacks are unset,
 * fields of other releases are dropped.
 */
export const readConfig = (stored: Record<string, unknown>): AgentConfig =>
  Object.fromEntries(configFields.map(name => [name, stored[name] ?? AGENT_DEFAULTS[name] ?? null])) as AgentConfig

const versionNumber = z.int().min(1).max(999_999_999)

export const ReleaseInput = z
  .strictObject({
    stable_version: versionNumber.describe('Version for the remaining callers'),
    canary_version: versionNumber.describe('Version to try'),
    canary_percent: z.int().min(0).max(100).describe('Percentage of end users that get the canary version'),
    promotion_gate: z
      .string()
      .min(1)
      .max(255)
      .nullish()
      .describe('Eval of the agent that the canary must pass before its promotion; no gate if omitted'),
    expected_version: expectedVersion,
  })
  .meta({ id: 'ReleaseInput', example: { stable_version: 3, canary_version: 4, canary_percent: 10 } })

/** Reference from an agent to the resources of its served versions, one for each referenced kind. */
const byRelease = {
  column: 'release_references',
  many: true,
  field: () => sql.fragment`'active_release'::text`,
  on_delete: 'block',
} as const

export const agentKind = kind({
  name: 'agent',
  prefix: 'agent',
  table: 'agents',
  missing: 'AGENT_NOT_FOUND',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'ai_provider', column: 'ai_provider_id', on_delete: 'block' },
    { kind: 'ai_provider', ...byRelease },
    { kind: 'model_route', column: 'model_route_id', on_delete: 'block' },
    { kind: 'model_route', ...byRelease },
    { kind: 'guardrail', column: 'guardrail_ids', many: true, on_delete: 'block' },
    { kind: 'guardrail', ...byRelease },
    {
      kind: 'model_route',
      column: 'summary_model_route_id',
      field: () => sql.fragment`'context_policy.summary_model_route_id'::text`,
      on_delete: 'block',
    },
    { kind: 'file', column: 'avatar_file_id', on_delete: 'block' },
    { kind: 'file', ...byRelease },
    // Deletable while bound: the turn then reports the tool as unavailable, the call its secret.
    { kind: 'tool', column: 'tool_ids', many: true, on_delete: 'null', grantable: true },
    { kind: 'secret', column: 'secret_ids', many: true, on_delete: 'null' },
  ],
  record: Agent,
  hidden: {
    /** Ids that the served versions reference; null without a release. */
    release_references: z.array(z.string()).nullable(),
    /** Tools that bindings reference, and secrets that inline definitions reference; null for none. */
    tool_ids: z.array(z.string()).nullable(),
    secret_ids: z.array(z.string()).nullable(),
    /** Route that `context_policy` references. */
    summary_model_route_id: z.string().nullable(),
    author: Author,
  },
  events: ['created', 'updated', 'deleted', 'release_started', 'release_promoted', 'release_aborted'],
  eventNotes: 'release_* carry release',
})

export type AgentRow = z.output<typeof agentKind.row>

/** Returns an agent of any project, or null. */
export const findAgent = (db: Queryable, id: string): Promise<AgentRow | null> => agentKind.find(db, id)
