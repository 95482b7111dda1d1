import type { Problem } from '../api/errors.ts'
import type { SchemaProblem } from './model.ts'

/** Where a value breaks a schema, as the wire's problems; `at` is the path of the value. */
export const wireProblems = (problems: readonly SchemaProblem[], at = ''): Problem[] =>
  problems.map(({ keyword, pointer, message }) => ({
    code: keyword.replace(/[A-Z]/g, letter => `_${letter}`).toUpperCase(),
    path: pointer
      .split('/')
      .slice(1)
      .map(part => part.replaceAll('~1', '/').replaceAll('~0', '~'))
      .reduce((path, part) => (/^\d+$/.test(part) ? `${path}[${part}]` : path === '' ? part : `${path}.${part}`), at),
    message,
  }))
