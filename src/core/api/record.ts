import { z } from 'zod'

export type Tags = Record<string, string>

/** Tags as a record shows them; keys starting `system.` are the platform's. */
export const TagBag = z.record(z.string(), z.string()).meta({ id: 'TagBag', example: { team: 'desk' } })

const id = z.string().describe('Id of the record')
const projectId = z.string().describe('Project that the record belongs to')
const time = z.iso.datetime()

export type RecordOptions = { project?: boolean; tags?: boolean; updated?: boolean }

type Show<T> = { [K in keyof T]: T[K] }

type RecordShape<F, O extends RecordOptions> = Show<
  { id: z.ZodString } & (O['project'] extends false ? unknown : { project_id: z.ZodString }) &
    F &
    (O['tags'] extends true ? { tags: typeof TagBag } : unknown) & {
      created_at: z.ZodISODateTime
    } & (O['updated'] extends false ? unknown : { updated_at: z.ZodISODateTime })
>

export type RecordOf<F, O extends RecordOptions> =
  RecordShape<F, O> extends infer S extends z.ZodRawShape ? z.ZodObject<S> : never

/**
 * The schema of a resource as the wire shows it: its own fields between `id` and `project_id` before, `tags` where it has
 * some, and its times behind. `project: false` is a resource of the deployment, `updated: false` one that never changes.
 */
export function record<F extends z.ZodRawShape, const O extends RecordOptions = Record<never, never>>(
  name: string,
  fields: F,
  options?: O,
): RecordOf<F, O> {
  const { project = true, tags = false, updated = true }: RecordOptions = options ?? {}
  return z
    .object({
      id,
      ...(project ? { project_id: projectId } : {}),
      ...fields,
      ...(tags ? { tags: TagBag } : {}),
      created_at: time,
      ...(updated ? { updated_at: time } : {}),
    })
    .meta({ id: name }) as never
}

/** Where a new resource goes, in the body of its create. */
export const projectField = z
  .string()
  .nullable()
  .optional()
  .describe('Project of the new resource; a credential that is bound to a project needs none')

type Partially<F extends z.ZodRawShape, R extends keyof F> = Show<
  { project_id: typeof projectField } & {
    [K in keyof F]: K extends R ? F[K] : F[K] extends z.ZodType ? z.ZodOptional<F[K]> : never
  }
>

/**
 * The body of a create: its project, the fields that are required, the others optional. No other property is accepted.
 * `example` is that of the description.
 */
export function createBody<F extends z.ZodRawShape, const R extends keyof F & string>(
  name: string,
  fields: F,
  required: readonly R[],
  example?: object,
): Partially<F, R> extends infer S extends z.ZodRawShape ? z.ZodObject<S, z.core.$strict> : never {
  const shape = Object.entries(fields as unknown as Record<string, z.ZodType>).map(([field, type]) => [
    field,
    (required as readonly string[]).includes(field) ? type : type.optional(),
  ])
  return z.strictObject({ project_id: projectField, ...Object.fromEntries(shape) }).meta({ id: name, example }) as never
}

/** The body of a PATCH: every field optional, no other property accepted. */
export const patchBody = <F extends z.ZodRawShape>(name: string, fields: F, example?: object) =>
  z.strictObject(fields).partial().meta({ id: name, example })
