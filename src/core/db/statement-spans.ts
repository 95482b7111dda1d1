import type { Interceptor } from 'slonik'
import { currentSpan, type Span, type SpanStart, startSpan } from '../base/telemetry.ts'
import { ATTRIBUTE, MUSTER } from '../base/telemetry-names.ts'

type Statement = { sql: string; name?: string }

const VERB = /^\s*([a-z]+)/i
/** The name after a keyword, without its schema; `from` is a part of `extract(epoch from …)` and `is distinct from` too. */
const TABLE = /(?<!\bextract\(\w+\s|\bdistinct\s)\b(?:from|into|update|join)\s+"?(?:\w+"?\."?)?([a-z_]\w*)/i

/** Returns the first keyword and the first table of a text. */
export const summaryOf = (text: string): string =>
  [VERB, TABLE].flatMap(pattern => pattern.exec(text)?.[1].toLowerCase() ?? []).join(' ')

const statementSpan = ({ sql, name }: Statement): SpanStart => ({
  name: 'db',
  kind: 'client',
  attributes: {
    [ATTRIBUTE.database]: 'postgresql',
    [ATTRIBUTE.statement]: summaryOf(sql),
    [MUSTER.prepared]: name,
  },
})

type Sandbox = { span?: Span | null }

/**
 * Makes a span of each statement below a sampled span: with its first words and its rows, never its text or values. Below
 * others they would displace the spans that wait for the outcome of their unit. The error of a span is the SQLSTATE.
 */
export const statementSpans: Interceptor = {
  name: 'spans',
  beforeQueryExecution: ({ sandbox }, query) => {
    if (currentSpan()?.sampled) (sandbox as Sandbox).span = startSpan(statementSpan, query)
    return null
  },
  afterQueryExecution: ({ sandbox }, _query, { rowCount }) => {
    const { span } = sandbox as Sandbox
    span?.set({ [ATTRIBUTE.rows]: rowCount })
    span?.end()
    return null
  },
  queryExecutionError: ({ sandbox }, _query, error) => {
    const { span } = sandbox as Sandbox
    span?.fail((error.cause as { code?: string } | undefined)?.code ?? 'INTERNAL_ERROR')
    span?.end()
    return null
  },
}
