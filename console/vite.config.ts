import react from '@vitejs/plugin-react'
import { defineConfig } from 'vite'
import { fieldsOfOperations } from './fields.ts'

/** Forms of schemas and their inputs, which the overview does not show. */
const FORMS =
  /components\/((schema-form|form-or-json|record-form|command-form)\.tsx|(JsonInput|TagsInput|MultiSelect|NumberInput|Autocomplete)\/)/

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
    // The parts of the overview, which few others have, are one more: it is the view that most people open first. So are
    // the forms, which it does not have.
    rolldownOptions: {
      output: {
        codeSplitting: {
          groups: [
            { name: 'shared', test: id => !FORMS.test(id), minShareCount: 20, priority: 1 },
            {
              name: 'parts',
              test: /components\/((failing-checks|figures|meter|pause)\.tsx|(Checkbox|PasswordInput)\/)/,
            },
            { name: 'forms', test: FORMS },
          ],
        },
      },
    },
  },
})
