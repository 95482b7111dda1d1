import { definitionOf } from '#core/api/authors.ts'
import { storabilityProblem } from '#core/api/validate.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import { AppError, type ErrorCode, type RecordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { narrowAuthority } from '#core/iam/authority.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import { downloadUrl } from '../files/download.ts'
import type { FileRow } from '../files/model.ts'
import { fileBytes } from '../files/read-file.ts'
import { acquireReadMemory, maxWholeRead } from '../files/read-memory.ts'
import type { PageText } from '../index/chunks/model.ts'
import { toolRunners } from '../tools.ts'
import type { IngestionRuleRow } from './model.ts'
import { parsePages } from './pages.ts'

/** A conversion of a file for an ingestion attempt. */
export type Conversion = {
  document_id: string
  attempt_id: string
  file: FileRow
  /** Principal that requested the ingestion. */
  principal: PrincipalRecord
  /** Callback for a deferred result of a tool; null if deferral is not allowed. */
  callback: { url: string; token: string } | null
  signal: AbortSignal
}

/** Result of a converter; `pages` may be empty. */
export type ConverterOutcome =
  | { kind: 'pages'; pages: PageText[] }
  | { kind: 'pending' }
  | { kind: 'failed'; error: RecordedFailure }

/** Result of an agent as converter. */
export type AgentConversion = { ok: true; text: string } | { ok: false; error: RecordedFailure }

export type AgentConverter = (
  services: Services,
  conversion: Omit<Conversion, 'callback'> & { project_id: string; agent_id: string },
) => Promise<AgentConversion>

/** Converts a file by an agent; registered by the agents module. */
export const agentConverters = extensionPoint<AgentConverter>({
  name: 'agent converter',
  folder: 'content/ingestion-rules',
  description: 'Converts a file to text by an agent',
})

type Reason = 'converter_missing' | 'file_too_large_for_base64' | 'deferral_not_allowed'

const failed = (error: RecordedFailure): ConverterOutcome => ({ kind: 'failed', error })

const failedWith = (code: ErrorCode, message: string): ConverterOutcome =>
  failed(new AppError(code, { message }).recorded())

/** Returns the converter of a rule for failures and logs. */
function converterOf({ tool_id, agent_id }: IngestionRuleRow) {
  return agent_id === null
    ? { id: tool_id as string, noun: 'tool', meta: { tool_id: tool_id as string } }
    : { id: agent_id, noun: 'agent', meta: { agent_id } }
}

function converterFailed(rule: IngestionRuleRow, message: string, detail: Record<string, unknown>): ConverterOutcome {
  const { id, noun, meta } = converterOf(rule)
  return failed({
    code: 'CONVERTER_FAILED',
    message: `Converter ${noun} '${id}' failed: ${message}`,
    meta: { ...meta, ...detail },
  })
}

const failedForReason = (rule: IngestionRuleRow, reason: Reason, message: string): ConverterOutcome =>
  converterFailed(rule, message, { reason })

/** Wraps the failure of a converter; omits `meta` if the database cannot store it, since it may quote a response. */
const failedByCause = (rule: IngestionRuleRow, { code, message, meta }: RecordedFailure): ConverterOutcome =>
  converterFailed(rule, message, { cause: { code, ...(meta && !storabilityProblem(meta) ? { meta } : {}) } })

/**
 * Converts a file to text by the converter of a rule, with the permissions that both the requester and the rule's
 * author have. Failures of the converter are outcomes; throws internal errors and the reason of the signal. After a
 * lost worker, a tool is called again with the same Idempotency-Key, and an agent's generation is reused.
 */
export async function convertFile(
  services: Services,
  rule: IngestionRuleRow,
  request: Conversion,
): Promise<ConverterOutcome> {
  const started = performance.now()
  const conversion = { ...request, principal: narrowAuthority(request.principal, definitionOf(rule)) }
  const convert = rule.agent_id === null ? convertByTool : convertByAgent
  const outcome = await convert(services, rule, conversion)
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

async function convertByTool(
  services: Services,
  rule: IngestionRuleRow,
  conversion: Conversion,
): Promise<ConverterOutcome> {
  const tool_id = rule.tool_id as string
  const tools = toolRunners.only()
  if (!tools || !(await tools.find(services.pool, rule.project_id, tool_id)))
    return failedForReason(rule, 'converter_missing', 'tool not found in the project')
  const call = async (delivery: { data_base64: string } | { download_url: string }): Promise<ConverterOutcome> => {
    const { id, filename, content_type, size } = conversion.file
    const outcome = await tools.call(services, {
      project_id: rule.project_id,
      tool_id,
      action: rule.action,
      input: {
        ...rule.preset_parameters,
        file: { id, filename, content_type, size, ...delivery },
        ...(conversion.callback ? { callback: conversion.callback } : {}),
      },
      source: 'ingestion',
      principal: conversion.principal,
      idempotency_key: conversion.attempt_id,
      timeout_ms: services.config.CONVERTER_TIMEOUT_MS,
      signal: conversion.signal,
    })
    return outcome.ok
      ? parseToolOutput(services, rule, outcome.output, conversion.callback !== null)
      : failedByCause(rule, outcome.error)
  }
  return rule.file_delivery === 'download_url'
    ? deliverByUrl(services, conversion.file, call)
    : deliverByValue(services, rule, conversion, call)
}

/** Calls a tool with a download URL of the file. */
async function deliverByUrl(
  services: Services,
  file: FileRow,
  call: (delivery: { download_url: string }) => Promise<ConverterOutcome>,
): Promise<ConverterOutcome> {
  if (services.config.baseUrlGiven) return call({ download_url: await downloadUrl(services, file.id) })
  const message = 'Download URLs of ingestion rules require BASE_URL'
  return failedWith('FILE_DOWNLOAD_URL_NOT_CONFIGURED', message)
}

/** Calls a tool with the content of the file, once memory is available. */
async function deliverByValue(
  services: Services,
  rule: IngestionRuleRow,
  { file, signal }: Conversion,
  call: (delivery: { data_base64: string }) => Promise<ConverterOutcome>,
): Promise<ConverterOutcome> {
  const tooLarge = oversizeFailure(services, rule, file)
  if (tooLarge) return tooLarge
  const release = await acquireReadMemory(services, file.project_id, file.size ?? 0, signal)
  try {
    const bytes = await fileBytes(services, file, maxWholeRead(services.config))
    if (!bytes) return failedWith('RESOURCE_NOT_FOUND', 'The content of the file is lost')
    return await call({ data_base64: bytes.toString('base64') })
  } finally {
    release()
  }
}

/** Returns the failure for a file that is too large to be sent by value, or null. */
function oversizeFailure({ config }: Services, rule: IngestionRuleRow, { size }: FileRow): ConverterOutcome | null {
  const limit = maxWholeRead(config)
  return size !== null && size > limit
    ? failedForReason(
        rule,
        'file_too_large_for_base64',
        `the file has ${size} bytes, more than the limit of ${limit} bytes for base64`,
      )
    : null
}

/** Parses the output of a tool. `pending` is allowed only if a callback was sent. */
function parseToolOutput(
  { config }: Services,
  rule: IngestionRuleRow,
  output: unknown,
  mayDefer: boolean,
): ConverterOutcome {
  if (typeof output === 'object' && output !== null && 'status' in output && output.status === 'pending')
    return mayDefer
      ? { kind: 'pending' }
      : failedForReason(rule, 'deferral_not_allowed', 'it returned pending, but no callback was sent')
  try {
    return { kind: 'pages', pages: parsePages(output, config.INGESTION_MAX_PAGES) }
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    const { code, message, meta } = error.recorded()
    return failed({ code, message, meta: { ...converterOf(rule).meta, ...meta } })
  }
}

async function convertByAgent(
  services: Services,
  rule: IngestionRuleRow,
  conversion: Conversion,
): Promise<ConverterOutcome> {
  const tooLarge = oversizeFailure(services, rule, conversion.file)
  if (tooLarge) return tooLarge
  const runAgent = agentConverters.only()
  if (!runAgent) throw new Error('no agent converter is registered')
  const converted = await runAgent(services, {
    ...conversion,
    project_id: rule.project_id,
    agent_id: rule.agent_id as string,
  })
  const { INGESTION_MAX_PAGES } = services.config
  return converted.ok
    ? { kind: 'pages', pages: parsePages(converted.text, INGESTION_MAX_PAGES) }
    : failedByCause(rule, converted.error)
}
