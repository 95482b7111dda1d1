import { z } from 'zod'
import { isAllowed } from '#core/api/access.ts'
import { type Problem, raiseInvalid } from '#core/base/errors.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { formationKind } from '../records/model.ts'
import { expressionsIn } from '../template/expressions.ts'
import { MAX_BYTES } from '../template/yaml.ts'
import type { CompiledTemplate } from './compile.ts'

/** Imports: values in templates that are outputs of other formations. */

/** Returns the distinct imports of a template, as written: `<formation>.<output>`. */
const importsOf = ({ declared }: Pick<CompiledTemplate, 'declared'>): string[] => [
  ...new Set(
    declared.flatMap(({ properties }) =>
      expressionsIn(properties).flatMap(({ expression }) => (expression.kind === 'import' ? [expression.text] : [])),
    ),
  ),
]

const parseImport = (text: string): { formation: string; output: string } => {
  const dot = text.lastIndexOf('.')
  return { formation: text.slice(0, dot), output: text.slice(dot + 1) }
}

const sourceRow = sql.type(
  z.strictObject({
    id: z.string(),
    project_id: z.string(),
    name: z.string(),
    outputs: z.record(z.string(), z.unknown()).nullable(),
    declared: z.record(z.string(), z.unknown()).nullable(),
  }),
)

/** Lists the formations that imports reference; `lock` blocks their changes until the transaction ends. */
async function listSources(db: Queryable, projectId: string, texts: readonly string[], lock = false) {
  const names = [...new Set(texts.map(text => parseImport(text).formation))]
  if (names.length === 0) return []
  // By formations_name.
  return db.any(sourceRow`
    select id, project_id, name, outputs, template -> 'outputs' as declared from formations
    where project_id = ${projectId} and name = any(${sql.array(names, 'text')}) and status not in ('deleted', 'deleting')
    ${lock ? sql.fragment`order by id for key share` : sql.fragment``}`)
}

/**
 * Returns the values of the imports of a template, and the imports that the caller may not read or that do not exist.
 * @throws VALIDATION_FAILED if the values exceed the size limit
 */
export async function resolveImports(
  db: Queryable,
  caller: Caller,
  projectId: string,
  compiled: Pick<CompiledTemplate, 'declared'>,
): Promise<{ values: Map<string, string>; denied: string[] }> {
  const texts = importsOf(compiled)
  const sources = await listSources(db, projectId, texts)
  const values = valuesOf(texts, sources)
  const denied = texts.filter(text => {
    const row = sources.find(({ name }) => name === parseImport(text).formation)
    return !row || !values.has(text) || !isAllowed(caller, 'formations:GetFormation', { kind: formationKind, row })
  })
  if (denied.length === 0) limitSize(compiled, values)
  return { values, denied }
}

/** Returns the values of the existing imports of a template. Raises VALIDATION_FAILED if they exceed the size limit. */
export async function readImportedValues(
  db: Queryable,
  projectId: string,
  compiled: Pick<CompiledTemplate, 'declared'>,
): Promise<Map<string, string>> {
  const texts = importsOf(compiled)
  const values = valuesOf(texts, await listSources(db, projectId, texts))
  limitSize(compiled, values)
  return values
}

/** Raises VALIDATION_FAILED if the imported values have more than MAX_BYTES characters in total. */
function limitSize(compiled: Pick<CompiledTemplate, 'declared'>, values: ReadonlyMap<string, string>): void {
  const length = expressionsIn(compiled.declared.map(({ properties }) => properties)).reduce(
    (sum, { expression: { kind, text } }) => sum + (kind === 'import' ? (values.get(text)?.length ?? 0) : 0),
    0,
  )
  if (length > MAX_BYTES)
    raiseInvalid({ code: 'TOO_LARGE', path: 'resources', message: `must not import more than ${MAX_BYTES} characters` })
}

function valuesOf(texts: readonly string[], sources: Awaited<ReturnType<typeof listSources>>): Map<string, string> {
  return new Map(
    texts.flatMap((text): [string, string][] => {
      const { formation, output } = parseImport(text)
      const outputs = sources.find(({ name }) => name === formation)?.outputs
      const value = outputs && Object.hasOwn(outputs, output) ? outputs[output] : undefined
      return typeof value === 'string' ? [[text, value]] : []
    }),
  )
}

/**
 * Stores the imports of a formation, which protects the imported outputs from removal. Locks the source formations for key
 * share in ID order.
 * @throws VALIDATION_FAILED for an output that no longer exists
 */
export async function storeImports(
  db: Queryable,
  projectId: string,
  formationId: string,
  compiled: Pick<CompiledTemplate, 'declared'>,
): Promise<void> {
  const texts = importsOf(compiled)
  const sources = await listSources(db, projectId, texts, true)
  const rows = texts.map(text => {
    const { formation, output } = parseImport(text)
    const source = sources.find(({ name }) => name === formation)
    return source && Object.hasOwn(source.declared ?? {}, output)
      ? [formationId, source.id, output]
      : raiseInvalid(importProblem(text))
  })
  const imports = sql.unnest(rows, ['text', 'text', 'text'])
  await db.query(voidStatement`
    delete from formation_imports i where formation_id = ${formationId}
      and not exists (select from ${imports} as n (f, s, o) where n.s = i.source_id and n.o = i.output)`)
  if (rows.length > 0)
    await db.query(voidStatement`
      insert into formation_imports (formation_id, source_id, output) select * from ${imports} as n (f, s, o) on conflict do nothing`)
}

export const importProblem = (text: string): Problem => ({
  code: 'NOT_FOUND',
  path: 'resources',
  message: `import '${text}' not found in this project`,
})

const importerRow = sql.type(z.strictObject({ formation_id: z.string(), name: z.string(), output: z.string() }))

/**
 * Lists at most 100 imports by other formations of outputs of a formation, without the outputs in `except`. By
 * formation_imports_source.
 */
export const listImporters = (db: Queryable, sourceId: string, except: readonly string[] = []) =>
  db.any(importerRow`
    select i.formation_id, f.name, i.output from formation_imports i join formations f on f.id = i.formation_id
    where i.source_id = ${sourceId} and i.formation_id <> ${sourceId} and not i.output = any(${sql.array([...except], 'text')}) order by f.name, i.output limit 100`)
