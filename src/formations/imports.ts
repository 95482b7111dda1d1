import { z } from 'zod'
import { type Problem, raiseInvalid } from '../core/api/errors.ts'
import { type Queryable, sql, voidStatement } from '../core/db/sql.ts'
import { isAllowed } from '../core/iam/access.ts'
import type { Caller } from '../core/iam/caller.ts'
import { formationKind } from './model.ts'
import type { CompiledTemplate } from './template/compile.ts'
import { expressionsIn } from './template/expressions.ts'
import { MAX_BYTES } from './template/parse.ts'

/** Outputs of formations that templates of others take values from. */

/** The imports of a template, as written: `<formation>.<output>`. */
const importsOf = ({ declared }: Pick<CompiledTemplate, 'declared'>): string[] => [
  ...new Set(
    declared.flatMap(({ properties }) =>
      expressionsIn(properties).flatMap(({ expression }) => (expression.kind === 'import' ? [expression.text] : [])),
    ),
  ),
]

const taken = (text: string): { formation: string; output: string } => {
  const dot = text.lastIndexOf('.')
  return { formation: text.slice(0, dot), output: text.slice(dot + 1) }
}

const Row = sql.type(
  z.strictObject({
    id: z.string(),
    project_id: z.string(),
    name: z.string(),
    outputs: z.record(z.string(), z.unknown()).nullable(),
    declared: z.record(z.string(), z.unknown()).nullable(),
  }),
)

/** The formations that imports name; `hold` keeps them from being changed until the transaction ends. */
async function sourcesOf(db: Queryable, projectId: string, texts: readonly string[], hold = false) {
  const names = [...new Set(texts.map(text => taken(text).formation))]
  if (names.length === 0) return []
  // By formations_name.
  return db.any(Row`
    select id, project_id, name, outputs, template -> 'outputs' as declared from formations
    where project_id = ${projectId} and name = any(${sql.array(names, 'text')}) and status not in ('deleted', 'deleting')
    ${hold ? sql.fragment`order by id for key share` : sql.fragment``}`)
}

/**
 * The imports of a template: their values, and those that the caller cannot take, because there is no such output or the caller
 * may not read its formation. Raises VALIDATION_FAILED where they come to too much.
 */
export async function importsFor(
  db: Queryable,
  caller: Caller,
  projectId: string,
  compiled: Pick<CompiledTemplate, 'declared'>,
): Promise<{ values: Map<string, string>; denied: string[] }> {
  const texts = importsOf(compiled)
  const sources = await sourcesOf(db, projectId, texts)
  const values = valuesOf(texts, sources)
  const denied = texts.filter(text => {
    const row = sources.find(({ name }) => name === taken(text).formation)
    return !row || !values.has(text) || !isAllowed(caller, 'formations:GetFormation', { kind: formationKind, row })
  })
  if (denied.length === 0) requireRoom(compiled, values)
  return { values, denied }
}

/** The values of the imports of a template that there are. Raises VALIDATION_FAILED where they come to too much. */
export async function importedValues(
  db: Queryable,
  projectId: string,
  compiled: Pick<CompiledTemplate, 'declared'>,
): Promise<Map<string, string>> {
  const texts = importsOf(compiled)
  const values = valuesOf(texts, await sourcesOf(db, projectId, texts))
  requireRoom(compiled, values)
  return values
}

/** Raises VALIDATION_FAILED where the values that a template imports come to too much. */
function requireRoom(compiled: Pick<CompiledTemplate, 'declared'>, values: ReadonlyMap<string, string>): void {
  const length = expressionsIn(compiled.declared.map(({ properties }) => properties)).reduce(
    (sum, { expression: { kind, text } }) => sum + (kind === 'import' ? (values.get(text)?.length ?? 0) : 0),
    0,
  )
  if (length > MAX_BYTES)
    raiseInvalid({ code: 'TOO_LARGE', path: 'resources', message: `import more than ${MAX_BYTES} characters` })
}

function valuesOf(texts: readonly string[], sources: Awaited<ReturnType<typeof sourcesOf>>): Map<string, string> {
  return new Map(
    texts.flatMap((text): [string, string][] => {
      const { formation, output } = taken(text)
      const outputs = sources.find(({ name }) => name === formation)?.outputs
      const value = outputs && Object.hasOwn(outputs, output) ? outputs[output] : undefined
      return typeof value === 'string' ? [[text, value]] : []
    }),
  )
}

/**
 * Notes what the template of a formation takes from others; their outputs stay while it does. Raises VALIDATION_FAILED for
 * outputs that went away meanwhile.
 */
export async function keepImports(
  db: Queryable,
  projectId: string,
  formationId: string,
  compiled: Pick<CompiledTemplate, 'declared'>,
): Promise<void> {
  const texts = importsOf(compiled)
  const sources = await sourcesOf(db, projectId, texts, true)
  const rows = texts.map(text => {
    const { formation, output } = taken(text)
    const source = sources.find(({ name }) => name === formation)
    return source && Object.hasOwn(source.declared ?? {}, output)
      ? [formationId, source.id, output]
      : raiseInvalid(noOutput(text))
  })
  const kept = sql.unnest(rows, ['text', 'text', 'text'])
  await db.query(voidStatement`
    delete from formation_imports i where formation_id = ${formationId}
      and not exists (select from ${kept} as n (f, s, o) where n.s = i.source_id and n.o = i.output)`)
  if (rows.length > 0)
    await db.query(voidStatement`
      insert into formation_imports (formation_id, source_id, output) select * from ${kept} as n (f, s, o) on conflict do nothing`)
}

export const noOutput = (text: string): Problem => ({
  code: 'NOT_FOUND',
  path: 'resources',
  message: `import ${text} names no output of a formation of the project`,
})

const Importer = sql.type(z.strictObject({ formation_id: z.string(), name: z.string(), output: z.string() }))

/** Other formations that take outputs of one, of those that are not in `except`; at most 100. By formation_imports_source. */
export const importersOf = (db: Queryable, sourceId: string, except: readonly string[] = []) =>
  db.any(Importer`
    select i.formation_id, f.name, i.output from formation_imports i join formations f on f.id = i.formation_id
    where i.source_id = ${sourceId} and i.formation_id <> ${sourceId} and not i.output = any(${sql.array([...except], 'text')}) order by f.name, i.output limit 100`)
