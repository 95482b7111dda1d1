import { z } from 'zod'
import { Author } from '../../core/api/authors.ts'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { withWarnings } from '../../core/api/warnings.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { GuardrailIds } from '../../identity/guardrail-ids.ts'
import { BoundTool } from '../tools/model.ts'
import { KnowledgeConfig } from './knowledge.ts'

const MAX_JSON_BYTES = 64 * 1024

const fitsJson = (value: unknown) => Buffer.byteLength(JSON.stringify(value)) <= MAX_JSON_BYTES
const positive = z.int().min(1).max(2_147_483_647)

const toolName = z.string().min(1).max(255).describe('Name of the tool as the model sees it')
const forced = z.strictObject({ type: z.literal('tool').describe('What it is'), tool_name: toolName })

/** What a model has to do with its tools. */
const ToolChoice = z.union([z.enum(['auto', 'required']), forced])
/** The same for single steps, which may also go without tools. */
export const StepToolChoice = z.union([z.enum(['auto', 'required', 'none']), forced])
export type ToolChoice = z.output<typeof StepToolChoice>

const choiceText = '`auto`, which null is, `required`, or `{ type: "tool", tool_name }`'
export const toolIds = z.array(z.string().min(1).max(255)).max(128)

export const ToolBinding = z
  .strictObject({
    tool_id: z
      .string()
      .min(1)
      .max(255)
      .optional()
      .describe('A tool of the project; exactly one of tool_id and tool is set'),
    tool: BoundTool.optional().describe('A definition of its own, which is always active'),
  })
  .meta({ id: 'ToolBinding' })
export type ToolBinding = z.output<typeof ToolBinding>

export const StepRule = z
  .strictObject({
    step: z.int().min(1).max(10_000).describe('Number of the step in its turn, from 1'),
    tool_choice: StepToolChoice.optional().describe(`${choiceText}, or \`none\``),
    active_tool_ids: toolIds.optional().describe('Bound tools that the step may call; an empty list is all'),
  })
  .refine(rule => rule.tool_choice !== undefined || rule.active_tool_ids !== undefined, {
    message: 'tool_choice or active_tool_ids is required',
  })
  .meta({ id: 'StepRule' })
export type StepRule = z.output<typeof StepRule>

export const StepRules = z
  .array(StepRule)
  .max(100)
  .refine(rules => new Set(rules.map(({ step }) => step)).size === rules.length, 'must name each step once')

const HasToolCall = z.strictObject({
  type: z.literal('has_tool_call').describe('Ends the turn once the step that called the tool has settled'),
  tool_name: toolName,
})
const MaxChain = z.strictObject({
  type: z.literal('max_chain_generations').describe('Bounds the generations that continue one another'),
  max_generations: z.int().min(2).describe('Most generations of a chain, at least 2'),
})
export const StopCondition = z.discriminatedUnion('type', [HasToolCall, MaxChain]).meta({ id: 'StopCondition' })
export type StopCondition = z.output<typeof StopCondition>
/** Those of a single turn. */
export const TurnStopConditions = z.array(HasToolCall).max(20)

const fields = {
  name: z.string().trim().min(1).max(255).nullable().describe('Name to show'),
  instructions: z.string().max(65_536).nullable().describe('The system prompt'),
  ai_provider_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe('AI provider that serves the model; null with a route, or with the default route of the project'),
  model_route_id: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe(
      'Model route that calls go by, in place of a provider; with neither they go by the default of the project',
    ),
  model: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe('Model of the provider; null is its default_model. Not with a route, whose targets name theirs'),
  tool_bindings: z
    .array(ToolBinding)
    .max(128)
    .nullable()
    .describe('What the model may call: tools of the project, and definitions of its own. Replaced as a whole'),
  active_tool_ids: toolIds
    .nullable()
    .describe('Bound tools that steps may call; null and an empty list are all. Definitions of its own always are'),
  tool_choice: ToolChoice.nullable().describe(
    `${choiceText}. One that forces a call needs a stop condition \`has_tool_call\``,
  ),
  stop_conditions: z.array(StopCondition).max(20).nullable().describe('What ends a turn or a chain, besides max_steps'),
  step_rules: StepRules.nullable().describe('Settings of single steps'),
  knowledge_config: KnowledgeConfig.nullable().describe(
    'What is searched before each turn, and where turns may write; null for nothing. Replaced as a whole',
  ),
  boundary_policy: z
    .record(z.string(), z.unknown())
    .nullable()
    .describe('Policy document that bounds what the platform tools of the agent may do, besides who it runs as'),
  guardrail_ids: GuardrailIds.nullable().describe('Guardrails of every tool call of the agent; null for none'),
  on_approval_expiry: z
    .enum(['terminate', 'react'])
    .nullable()
    .describe('Whether a turn reports to the model that an approval expired (`react`); null is `terminate`'),
  max_steps: positive.nullable().describe('Most model calls of one turn; null is 20'),
  temperature: z.number().min(0).max(2).nullable().describe('Sampling temperature; null is not sent'),
  max_output_tokens: positive.nullable().describe('Most tokens of one answer; null is not sent'),
  top_p: z.number().min(0).max(1).nullable().describe('Nucleus sampling; null is not sent'),
  seed: z.int().nullable().describe('Seed for repeatable answers, where the vendor takes one'),
  provider_options: z
    .record(z.string(), z.record(z.string(), z.unknown()))
    .refine(fitsJson, 'must be at most 64 KiB')
    .nullable()
    .describe('Options per provider type, passed through to its vendor'),
  // Anything goes in here: what is not a JSON Schema has a code of its own.
  output_schema: z.unknown().describe('JSON Schema, draft-07 or 2020-12, that final answers satisfy; null for text'),
  prompt_caching: z
    .strictObject({ enabled: z.boolean().describe('Whether it is done') })
    .nullable()
    .describe('Marks the instructions as a prefix that the vendor may cache'),
  max_context_messages: positive.nullable().describe('Most messages that a model is given, the newest; null is all'),
  single_session_per_actor: z.boolean().describe('An end user has at most one open session with the agent'),
  trace_content_mode: z
    .enum(['full', 'none'])
    .nullable()
    .describe('Whether the content of turns is kept; null is as the project says, which may not be exceeded'),
}

/** Two versions that share the turns of an agent. */
export const ActiveRelease = z
  .object({
    stable_version: z.int().describe('Version that the other callers get'),
    canary_version: z.int().describe('Version that a share of the callers gets'),
    canary_percent: z.int().describe('Of a hundred end users so many get the canary'),
    promotion_gate: z.string().nullable().describe('Eval that the canary has to pass before it is promoted'),
    started_at: z.iso.datetime(),
    started_by: z.string().nullable().describe('User who started it; of a key its owner'),
  })
  .meta({ id: 'ActiveRelease' })
export type ActiveRelease = z.output<typeof ActiveRelease>

export const Agent = record('Agent', {
  ...fields,
  output_schema: z.record(z.string(), z.unknown()).nullable(),
  version: z.int().describe('Counts the changes of the configuration, from 1'),
  active_release: ActiveRelease.nullable().describe('The versions that are served in place of this configuration'),
})

/** What other projects are shown of an agent that is shared with them. */
export const AgentProjection = z.object({ id: z.string(), name: z.string().nullable() }).meta({ id: 'AgentProjection' })

const label = z.string().trim().min(1).max(255).optional()
const expected_version = z
  .int()
  .min(1)
  .optional()
  .describe('The write goes through only while the agent is at this version')
const version_label = label.describe('Label of the version that the write makes')

/** What a write of an agent answers. */
export const AgentWithWarnings = withWarnings(Agent, 'AgentWithWarnings')

export const AgentPatch = patchBody(
  'AgentPatch',
  { ...fields, version_label, expected_version },
  { instructions: 'Answer briefly, from the help pages, and name the page.' },
)

export const AgentInput = createBody('AgentInput', { ...fields, version_label }, [], {
  name: 'Support desk',
  ai_provider_id: 'aip_01k5p3vd7r9hj2x8m4qcw6tz0e',
  model: 'gpt-5-mini',
  instructions: 'Answer briefly, from the help pages.',
  tool_bindings: [{ tool_id: 'tool_01k5p3vd7r9hj2x8m4qcw6tz0e' }],
})

/** A configuration by itself: every field that a caller may write, which is what a version keeps. */
export const AgentConfig = z.object(fields)
export type AgentConfig = Pick<AgentRow, keyof typeof fields>
export const configFields = Object.keys(fields) as (keyof AgentConfig)[]

export const AgentVersion = z
  .object({
    id: z.string(),
    agent_id: z.string(),
    version: z.int(),
    config: z.record(z.string(), z.unknown()).describe('Every field that a caller may write, as it stood'),
    label: z.string().nullable(),
    eval_run_id: z.string().nullable().describe('The run that let a canary go live as this version'),
    created_by: z.string().nullable().describe('User who wrote it; of a key its owner; null for the deployment'),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'AgentVersion' })
export type AgentVersion = z.output<typeof AgentVersion>

export const RestoreAgentInput = z
  .strictObject({ label: label.describe('Label of the new version; default `restored from v<n>`'), expected_version })
  .meta({ id: 'AgentRestoreInput' })

const versionNumber = z.int().min(1).max(999_999_999)

export const ReleaseInput = z
  .strictObject({
    stable_version: versionNumber.describe('Version that is served to everybody else'),
    canary_version: versionNumber.describe('Version that is tried'),
    canary_percent: z.int().min(0).max(100).describe('Of a hundred end users so many get the canary'),
    promotion_gate: z
      .string()
      .min(1)
      .max(255)
      .nullish()
      .describe('Eval of the agent that the canary has to pass before it is promoted; without one there is no gate'),
    expected_version,
  })
  .meta({ id: 'ReleaseInput', example: { stable_version: 3, canary_version: 4, canary_percent: 10 } })

/** How an agent refers to what a served version names, for every kind of what a configuration names. */
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
    // They may go although a binding names them: the turn says that the tool is unavailable, the call that its secret is.
    { kind: 'tool', column: 'tool_ids', many: true, on_delete: 'null', grantable: true },
    { kind: 'secret', column: 'secret_ids', many: true, on_delete: 'null' },
  ],
  record: Agent,
  hidden: {
    /** Ids that the served versions name; null without a release. */
    release_references: z.array(z.string()).nullable(),
    /** Tools that bindings name, and secrets that definitions in bindings name; null for none. */
    tool_ids: z.array(z.string()).nullable(),
    secret_ids: z.array(z.string()).nullable(),
    author: Author,
  },
  events: ['created', 'updated', 'deleted', 'release_started', 'release_promoted', 'release_aborted'],
  eventNotes: 'release_* carry release',
})

export type AgentRow = z.output<typeof agentKind.row>

/** The agent of an id, whatever its project; null when there is none. */
export const findAgent = (db: Queryable, id: string): Promise<AgentRow | null> => agentKind.find(db, id)
