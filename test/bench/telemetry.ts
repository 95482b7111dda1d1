import { pathToFileURL } from 'node:url'
import { loadConfig } from '#config.ts'
import { silentLog } from '#core/base/log.ts'
import { telemetryDropped } from '#core/base/metrics.ts'
import { openTelemetry, type Span, type SpanStart, traced } from '#core/base/telemetry.ts'
import { ATTRIBUTE, MUSTER, OPERATION } from '#core/base/telemetry-names.ts'
import { testEnvironment } from '../support/environment.ts'
import { startCollectorProcess } from './collector.ts'
import { amount } from './fast.ts'
import { median, percentile, rounded } from './measure.ts'
import type { Row } from './rows.ts'
import { turnRows } from './telemetry-turns.ts'

/**
 * Processor time of a span: units such as a turn with a model call and a tool call, in a loop with telemetry off, unsampled
 * and sampled, in turns. A sampled span includes its export, to a collector in another process. The time of the same loop
 * with telemetry off is subtracted. Then turns of deployments, without telemetry and with it. Usage: npm run bench telemetry [-- --fast]
 */
const SPANS_OF_UNIT = 3
/** Units of a round: of sampled ones as many as fit in the queue of the exporter. */
const UNITS = { off: 6000, unsampled: 6000, sampled: 600 }
const ROUNDS = amount(200, 40)
/** Share of the rounds that others on the machine disturbed least: they only add to the time of a processor. */
const QUIET = 0.05

const RATIOS = { off: null, unsampled: '0', sampled: '1' } as const

type Mode = keyof typeof RATIOS

const MODES = Object.keys(RATIOS) as Mode[]

type Turn = { id: string; at: string }

const turnSpan = ({ id, at }: Turn): SpanStart => ({
  name: `${OPERATION.agent} desk`,
  unit: true,
  from: { context: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00', at },
  shared: { [MUSTER.project]: 'prj_desk', [MUSTER.run]: null, [ATTRIBUTE.session]: id, [ATTRIBUTE.conversation]: id },
  attributes: {
    [ATTRIBUTE.operation]: OPERATION.agent,
    [ATTRIBUTE.provider]: 'openai',
    [ATTRIBUTE.agentName]: 'desk',
    [ATTRIBUTE.requestModel]: 'gpt-4o',
    [MUSTER.agent]: 'agt_desk',
    [MUSTER.generation]: id,
    [MUSTER.queueWait]: 3,
  },
})

const callSpan = (model: string): SpanStart => ({
  name: `${OPERATION.chat} ${model}`,
  kind: 'client',
  attributes: {
    [ATTRIBUTE.operation]: OPERATION.chat,
    [ATTRIBUTE.provider]: 'openai',
    [ATTRIBUTE.requestModel]: model,
    [ATTRIBUTE.requestStream]: true,
    [ATTRIBUTE.temperature]: null,
    [ATTRIBUTE.maxTokens]: 1024,
    [ATTRIBUTE.address]: 'models.example',
    [ATTRIBUTE.port]: 443,
  },
})

const toolSpan = (name: string): SpanStart => ({
  name: `${OPERATION.tool} ${name}`,
  requests: true,
  attributes: {
    [ATTRIBUTE.operation]: OPERATION.tool,
    [ATTRIBUTE.toolName]: name,
    [ATTRIBUTE.toolCall]: 'call_0',
    [ATTRIBUTE.toolType]: 'extension',
    [ATTRIBUTE.mcpMethod]: null,
    [MUSTER.toolKind]: 'http',
  },
})

const turn = (subject: Turn): Promise<void> =>
  traced(turnSpan, subject, async span => {
    await traced(callSpan, 'gpt-4o', called)
    await traced(toolSpan, 'look', worked)
    span?.set({ [MUSTER.attempt]: 1, [MUSTER.outcome]: 'completed', [MUSTER.cost]: 0.01 })
  })

const called = async (span: Span | null): Promise<void> =>
  span?.set({
    [ATTRIBUTE.firstChunk]: 0.5,
    [ATTRIBUTE.responseModel]: 'gpt-4o-2026',
    [ATTRIBUTE.finishReasons]: ['stop'],
    [ATTRIBUTE.inputTokens]: 100,
    [ATTRIBUTE.outputTokens]: 20,
  })

const worked = async (): Promise<void> => {}

/** Microseconds of the processor for one span's share of a round. */
async function round(mode: Mode, url: string): Promise<number> {
  const config = loadConfig({
    ...testEnvironment('postgres://unused'),
    ...(RATIOS[mode] !== null && {
      OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: `${url}/v1/traces`,
      OTEL_TRACES_SAMPLER: 'traceidratio',
      OTEL_TRACES_SAMPLER_ARG: RATIOS[mode],
      OTEL_BSP_EXPORT_TIMEOUT: '60000',
    }),
  })
  const telemetry = await openTelemetry(config, { role: 'worker', log: silentLog() })
  const at = new Date().toISOString()
  const before = process.cpuUsage()
  for (let n = 0; n < UNITS[mode]; n++) await turn({ id: `gen_${n}`, at })
  await telemetry.close(60_000)
  const { user, system } = process.cpuUsage(before)
  return (user + system) / UNITS[mode] / SPANS_OF_UNIT
}

export async function run(): Promise<Row[]> {
  const collector = await startCollectorProcess()
  const taken: Record<Mode, number[]> = { off: [], unsampled: [], sampled: [] }
  try {
    // The first rounds compile.
    for (let n = -10; n < ROUNDS; n++)
      for (const mode of n % 2 === 0 ? MODES : MODES.toReversed()) {
        const us = await round(mode, collector.url)
        if (n >= 0) taken[mode].push(us)
      }
    const dropped = (await telemetryDropped.get()).values
    if (dropped.length > 0) throw new Error(`spans were dropped: ${JSON.stringify(dropped)}`)
  } finally {
    collector.close()
  }
  const cost = (mode: Mode) => percentile(taken[mode], QUIET)
  const costs = { unsampled: cost('unsampled') - cost('off'), sampled: cost('sampled') - cost('off') }
  const spans = (['unsampled', 'sampled'] as const).map(mode => ({
    what: `processor time of ${mode === 'unsampled' ? 'an unsampled' : 'a sampled'} span`,
    value: rounded(costs[mode], 2),
    unit: 'us',
    target: mode === 'unsampled' ? '<= 1' : '<= 14',
    note: `median ${rounded(median(taken[mode]) - median(taken.off), 2)} us; the loop alone ${rounded(cost('off'), 2)} us`,
  }))
  return [...spans, ...(await turnRows(costs))]
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run())
  process.exit(0)
}
