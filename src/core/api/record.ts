import { z } from 'zod'

export type Tags = Record<string, string>

/** Tags of a record; keys with the prefix `system.` are set by the platform. */
export const TagBag = z.record(z.string(), z.string()).meta({ id: 'TagBag', example: { team: 'desk' } })

const id = z.string().describe('ID of the record')
const projectId = z.string().describe('ID of the project that the record belongs to')
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
 * Returns the wire schema of a resource: `id`, `project_id`, its own fields, `tags` if it has any, and its timestamps.
 * `project: false` is a resource of the deployment, `updated: false` an immutable resource.
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

/** The project field in the body of a create. */
export const projectField = z
  .string()
  .nullable()
  .optional()
  .describe('ID of the project of the new resource. Default: the project that the credential is bound to.')

type Partially<F extends z.ZodRawShape, R extends keyof F> = Show<
  { project_id: typeof projectField } & {
    [K in keyof F]: K extends R ? F[K] : F[K] extends z.ZodType ? z.ZodOptional<F[K]> : never
  }
>

/**
 * Returns the body schema of a create: the project, the `required` fields, and the other fields as optional. Other
 * properties are refused. `example` appears in the OpenAPI document.
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

/** Returns the body schema of a PATCH: all fields are optional, other properties are refused. */
export const patchBody = <F extends z.ZodRawShape>(name: string, fields: F, example?: object) =>
  z.strictObject(fields).partial().meta({ id: name, example })
