import react from '@vitejs/plugin-react'
import { defineConfig } from 'vite'
import { fieldsOfOperations } from './fields.ts'

/** No inline script or style, and no address of a file that is not named by its content. */
export default defineConfig({
  base: '/app/',
  plugins: [fieldsOfOperations(), react()],
  build: {
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    sourcemap: false,
    target: 'es2023',
    reportCompressedSize: false,
    // What most views use is one file: a file a shared module would be 60 requests for the first view.
    // The parts of the overview, which few others have, are one more: it is the view that most people open first.
    rolldownOptions: {
      output: {
        codeSplitting: {
          groups: [
            { name: 'shared', minShareCount: 20, priority: 1 },
            { name: 'parts', test: /components\/(failing-checks|meter|pause)\.tsx$/ },
          ],
        },
      },
    },
  },
})
