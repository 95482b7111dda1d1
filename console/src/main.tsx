import './styles.ts'
import { MantineProvider } from '@mantine/core'
import { Notifications } from '@mantine/notifications'
import { QueryClientProvider } from '@tanstack/react-query'
import { RouterProvider } from '@tanstack/react-router'
import { setNonce } from 'get-nonce'
import { createRoot } from 'react-dom/client'
import { queries } from './api.ts'
import { admitTextOnly } from './policy.ts'
import { preloadView, router } from './router.tsx'
import { SignInGate } from './session/gate.tsx'
import { schemeInMemory, theme } from './theme.ts'

admitTextOnly()

// Browsers hide the attribute from selectors; the property has its value.
const nonce = document.querySelector<HTMLMetaElement>('meta[nonce]')?.nonce ?? ''
setNonce(nonce)

createRoot(document.getElementById('root') as HTMLElement).render(
  <MantineProvider
    theme={theme}
    defaultColorScheme="auto"
    colorSchemeManager={schemeInMemory}
    getStyleNonce={() => nonce}
  >
    <Notifications position="bottom-right" />
    <QueryClientProvider client={queries}>
      <SignInGate preload={preloadView}>
        <RouterProvider router={router} />
      </SignInGate>
    </QueryClientProvider>
  </MantineProvider>,
)
