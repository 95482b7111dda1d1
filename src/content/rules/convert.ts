import { definitionOf } from '../../core/api/authors.ts'
import { AppError, type ErrorCode, type RecordedFailure } from '../../core/api/errors.ts'
import { storabilityProblem } from '../../core/api/validate.ts'
import { extensionPoint } from '../../core/declarations.ts'
import { narrowAuthority } from '../../core/iam/authority.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import type { PageText } from '../chunks/model.ts'
import { downloadUrl } from '../files/download.ts'
import type { FileRow } from '../files/model.ts'
import { fileBytes } from '../files/read-file.ts'
import { acquireReadMemory, maxWholeRead } from '../files/read-memory.ts'
import { toolRunners } from '../tools.ts'
import type { IngestionRuleRow } from './model.ts'
import { parsePages } from './pages.ts'

/** One conversion: which file, for which attempt, and as whom. */
export type Conversion = {
  document_id: string
  attempt_id: string
  file: FileRow
  /** Who asked for the ingestion. */
  principal: PrincipalRecord
  /** Where a tool may post its text later; null when it has to answer now. */
  callback: { url: string; token: string } | null
  signal: AbortSignal
}

/** What a converter made of a file; `pages` may be empty. */
export type ConverterOutcome =
  | { kind: 'pages'; pages: PageText[] }
  | { kind: 'pending' }
  | { kind: 'failed'; error: RecordedFailure }

/** What an agent made of a file. */
export type AgentAnswer = { ok: true; text: string } | { ok: false; error: RecordedFailure }

export type AgentConverter = (
  services: Services,
  conversion: Omit<Conversion, 'callback'> & { project_id: string; agent_id: string },
) => Promise<AgentAnswer>

/** How an agent converts a file; contributed by the later area of agents. */
export const agentConverters = extensionPoint<AgentConverter>('agent converter')

type Reason = 'converter_missing' | 'file_too_large_for_base64' | 'deferral_not_allowed'

const failed = (error: RecordedFailure): ConverterOutcome => ({ kind: 'failed', error })

const named = (code: ErrorCode, message: string): ConverterOutcome => failed(new AppError(code, { message }).recorded())

/** Who converts by a rule, as failures name them. */
function converterOf({ tool_id, agent_id }: IngestionRuleRow) {
  return agent_id === null
    ? { id: tool_id as string, noun: 'tool', meta: { tool_id: tool_id as string } }
    : { id: agent_id, noun: 'agent', meta: { agent_id } }
}

function converterFailed(rule: IngestionRuleRow, message: string, more: Record<string, unknown>): ConverterOutcome {
  const { id, noun, meta } = converterOf(rule)
  return failed({
    code: 'CONVERTER_FAILED',
    message: `Converter ${noun} '${id}' failed: ${message}`,
    meta: { ...meta, ...more },
  })
}

const refused = (rule: IngestionRuleRow, reason: Reason, message: string): ConverterOutcome =>
  converterFailed(rule, message, { reason })

/** A failure with its cause; of meta, which may quote what a stranger answered, only what the database can hold. */
const caused = (rule: IngestionRuleRow, { code, message, meta }: RecordedFailure): ConverterOutcome =>
  converterFailed(rule, message, { cause: { code, ...(meta && !storabilityProblem(meta) ? { meta } : {}) } })

/**
 * Has the converter of a rule turn a file into text, as who asked for it within the rights of the rule's author. Whatever a converter does is an outcome; it
 * throws for faults of our own, and the reason of the signal when that ends the call. A tool may be called again for an
 * attempt that was lost, under the same Idempotency-Key; an agent's generation is found again.
 */
export async function convertFile(
  services: Services,
  rule: IngestionRuleRow,
  asked: Conversion,
): Promise<ConverterOutcome> {
  const started = performance.now()
  const conversion = { ...asked, principal: narrowAuthority(asked.principal, definitionOf(rule)) }
  const outcome = await (rule.agent_id === null ? byTool : byAgent)(services, rule, conversion)
  conversion.signal.throwIfAborted()
  services.log.info(
    {
      document_id: conversion.document_id,
      attempt_id: conversion.attempt_id,
      ingestion_rule_id: rule.id,
      ...converterOf(rule).meta,
      outcome: outcome.kind,
      code: outcome.kind === 'failed' ? outcome.error.code : undefined,
      ms: Math.round(performance.now() - started),
    },
    'conversion',
  )
  return outcome
}

async function byTool(services: Services, rule: IngestionRuleRow, conversion: Conversion): Promise<ConverterOutcome> {
  const tool_id = rule.tool_id as string
  const tools = toolRunners.only()
  if (!tools || !(await tools.find(services.pool, rule.project_id, tool_id)))
    return refused(rule, 'converter_missing', 'the project has no such tool')
  const call = async (delivered: { data_base64: string } | { download_url: string }): Promise<ConverterOutcome> => {
    const { id, filename, content_type, size } = conversion.file
    const outcome = await tools.call(services, {
      project_id: rule.project_id,
      tool_id,
      action: rule.action,
      input: {
        ...rule.preset_parameters,
        file: { id, filename, content_type, size, ...delivered },
        ...(conversion.callback ? { callback: conversion.callback } : {}),
      },
      source: 'ingestion',
      principal: conversion.principal,
      idempotency_key: conversion.attempt_id,
      timeout_ms: services.config.CONVERTER_TIMEOUT_MS,
      signal: conversion.signal,
    })
    return outcome.ok
      ? outcomeOf(services, rule, outcome.output, conversion.callback !== null)
      : caused(rule, outcome.error)
  }
  return rule.file_delivery === 'download_url'
    ? withAddress(services, conversion.file, call)
    : withBytes(services, rule, conversion, call)
}

/** Has a tool called with an address of the file. */
async function withAddress(
  services: Services,
  file: FileRow,
  call: (delivered: { download_url: string }) => Promise<ConverterOutcome>,
): Promise<ConverterOutcome> {
  if (services.config.baseUrlGiven) return call({ download_url: await downloadUrl(services, file.id) })
  const message = 'The rule sends a download address, for which BASE_URL is needed'
  return named('FILE_DOWNLOAD_URL_NOT_CONFIGURED', message)
}

/** Has a tool called with the bytes of the file, once there is memory for them. */
async function withBytes(
  services: Services,
  rule: IngestionRuleRow,
  { file, signal }: Conversion,
  call: (delivered: { data_base64: string }) => Promise<ConverterOutcome>,
): Promise<ConverterOutcome> {
  const tooLarge = oversized(services, rule, file)
  if (tooLarge) return tooLarge
  const release = await acquireReadMemory(services, file.project_id, file.size ?? 0, signal)
  try {
    const bytes = await fileBytes(services, file, maxWholeRead(services.config))
    if (!bytes) return named('RESOURCE_NOT_FOUND', 'The bytes of the file are lost')
    return await call({ data_base64: bytes.toString('base64') })
  } finally {
    release()
  }
}

/** Refuses a file that is larger than what goes into a call. */
function oversized({ config }: Services, rule: IngestionRuleRow, { size }: FileRow): ConverterOutcome | null {
  const limit = maxWholeRead(config)
  return size !== null && size > limit
    ? refused(rule, 'file_too_large_for_base64', `the file has ${size} bytes, of which ${limit} can be sent in base64`)
    : null
}

/** What a tool's output means. Deferral is for those that were given a callback. */
function outcomeOf({ config }: Services, rule: IngestionRuleRow, output: unknown, mayDefer: boolean): ConverterOutcome {
  if (typeof output === 'object' && output !== null && 'status' in output && output.status === 'pending')
    return mayDefer
      ? { kind: 'pending' }
      : refused(rule, 'deferral_not_allowed', 'it answered pending where it was not given a callback')
  try {
    return { kind: 'pages', pages: parsePages(output, config.INGESTION_MAX_PAGES) }
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    const { code, message, meta } = error.recorded()
    return failed({ code, message, meta: { ...converterOf(rule).meta, ...meta } })
  }
}

async function byAgent(services: Services, rule: IngestionRuleRow, conversion: Conversion): Promise<ConverterOutcome> {
  const tooLarge = oversized(services, rule, conversion.file)
  if (tooLarge) return tooLarge
  const runAgent = agentConverters.only()
  if (!runAgent) throw new Error('no module runs agents')
  const answered = await runAgent(services, {
    ...conversion,
    project_id: rule.project_id,
    agent_id: rule.agent_id as string,
  })
  const { INGESTION_MAX_PAGES } = services.config
  return answered.ok
    ? { kind: 'pages', pages: parsePages(answered.text, INGESTION_MAX_PAGES) }
    : caused(rule, answered.error)
}
