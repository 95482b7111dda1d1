import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const userErrors = {
  BOOTSTRAP_ALREADY_COMPLETED: {
    status: 409,
    description: 'A user already exists',
    message: 'The deployment has its first user already',
    hint: 'Sign in with POST /users/login; an admin creates further users with POST /users.',
  },
  LAST_ADMIN_REQUIRED: {
    status: 409,
    description: 'Delete or demotion would leave no admin',
    message: 'No admin would be left',
    hint: 'Make another user an admin first.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof userErrors> {}
}
