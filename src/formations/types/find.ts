import type { Services } from '#core/base/services.ts'
import { builtInType } from './built-in.ts'
import type { TemplateType } from './model.ts'
import { registeredTypes } from './registered.ts'

/** Returns the built-in or registered type of a name; undefined if there is none. */
export const findType = (services: Services, name: string): TemplateType | undefined =>
  builtInType(services, name) ?? registeredTypes(services).get(name)
