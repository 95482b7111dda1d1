import { z } from 'zod'
import type { Config } from './config.ts'

/** Declaration of settings. A `settings.ts` has the settings of its module, or of its folder of core. */

/** Groups of docs/operations.md and `.env.example`. */
type SettingGroup =
  | 'process'
  | 'openai'
  | 'protocols'
  | 'mcp'
  | 'database'
  | 'identity'
  | 'egress'
  | 'workers'
  | 'control'
  | 'formations'
  | 'content'
  | 'telemetry'

type Marks = {
  /** The documented default, if the actual one depends on the environment. */
  documented?: string
  /** Required in production. */
  production?: boolean
  secret?: boolean
}

/** The declaration of a setting: schema, default and description. */
export type Setting<T> = Marks & { schema: z.ZodType<T, string>; default: string; doc: string }

export type Environment = Readonly<Record<string, string | undefined>>

/**
 * Derives unset settings and checks settings together, once all are parsed. A setting with an invalid value is undefined.
 */
type Complete = (config: Config, problem: (variable: string, message: string) => void, env: Environment) => void

/** Settings of one group, by name. */
export type SettingsDeclaration<S extends Record<string, Setting<unknown>> = Record<string, Setting<unknown>>> = {
  group: SettingGroup
  settings: S
  complete?: Complete
}

/** The settings of a declaration with the types of their values. */
export type Values<D extends SettingsDeclaration> = {
  [Name in keyof D['settings']]: D['settings'][Name] extends Setting<infer T> ? T : never
}

/** Declares settings; the file adds their values to `Config`, and `src/settings.ts` lists the declaration. */
export const settings = <S extends Record<string, Setting<unknown>>>(
  group: SettingGroup,
  declared: S,
  complete?: Complete,
): SettingsDeclaration<S> => ({ group, settings: declared, complete })

/** Declares a setting. An empty value is the default. */
export const setting = <T>(
  schema: z.ZodType<T, string>,
  fallback: string,
  doc: string,
  marks: Marks = {},
): Setting<T> => ({ schema, default: fallback, doc, ...marks })

export const text = z.string()

export const optional = z
  .string()
  .transform(value => (value === '' ? null : value))
  .nullable() as unknown as z.ZodType<string | null, string>

export const httpUrl = z
  .string()
  .refine(value => value === '' || /^https?:\/\/[^/?#\\\s@][^?#\s]*$/.test(value), 'must be an http or https URL')
  .transform(value => (value === '' ? null : value))
  .nullable() as unknown as z.ZodType<string | null, string>

/** A text that the function of its declaration derives if it is unset. */
export const derived = (schema: z.ZodType<string | null, string>) => schema as z.ZodType<string, string>

export const integer = (min: number, max = Number.MAX_SAFE_INTEGER) =>
  z
    .string()
    .regex(/^-?\d+$/, 'must be an integer')
    .transform(Number)
    .pipe(z.number().int().min(min).max(max))

/** An integer that is 0 or at least `min`. */
export const zeroOrAtLeast = (min: number) =>
  integer(0).refine(value => value === 0 || value >= min, `must be 0 or at least ${min}`)

/** A positive integer; other values fall back to the default. */
export const positiveOr = (value: number) =>
  z.string().transform(text => (/^[1-9]\d{0,8}$/.test(text) ? Number(text) : value))

/** A positive integer; other values are treated as unset. */
export const positiveOrUnset = z
  .string()
  .transform(text => (/^[1-9]\d{0,8}$/.test(text) ? Number(text) : null)) as z.ZodType<number | null, string>

/** A non-negative integer; other values fall back to the default. */
export const zeroOr = (value: number) =>
  z.string().transform(text => (/^(0|[1-9]\d{0,8})$/.test(text) ? Number(text) : value))

export const number = (min: number, max: number) => z.string().transform(Number).pipe(z.number().min(min).max(max))

export const flag = z
  .string()
  .toLowerCase()
  .pipe(z.enum(['true', 'false', '1', '0', 'on', 'off', 'yes', 'no'], 'must be true or false'))
  .transform(value => ['true', '1', 'on', 'yes'].includes(value))

export const list = z.string().transform(value =>
  value
    .split(',')
    .map(part => part.trim())
    .filter(part => part !== ''),
)
