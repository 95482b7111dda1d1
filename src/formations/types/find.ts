import type { Services } from '../../core/process/services.ts'
import { builtInType } from './built-in.ts'
import type { TemplateType } from './model.ts'
import { registeredTypes } from './registered.ts'

/** The type of resources that templates call so; undefined for none. */
export const findType = (services: Services, name: string): TemplateType | undefined =>
  builtInType(services, name) ?? registeredTypes(services).get(name)
