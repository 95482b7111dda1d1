import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const userErrors = {
  BOOTSTRAP_ALREADY_COMPLETED: {
    status: 409,
    description: 'A user already exists',
    message: 'Deployment already has a user',
    hint: 'Sign in with POST /users/login; an admin creates further users with POST /users.',
  },
  LAST_ADMIN_REQUIRED: {
    status: 409,
    description: 'Operation would leave no admin',
    message: 'User is the last admin who can sign in',
    hint: 'Make another user an admin with PATCH /users/{user_id} first.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof userErrors> {}
}
