// Made by `npm run types` from the server's OpenAPI document. Do not edit.

export interface paths {
    "/health": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Health
         * @description The process is alive and its event loop turns.
         */
        get: operations["health"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/ready": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Ready
         * @description Whether requests will be served; 503 with the reasons when they may not be.
         */
        get: operations["ready"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/metrics": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Metrics
         * @description Prometheus text: ours, and the engines' own with a `model` label. Other machines need a key that may read,
         *     unless `metrics.public` is set.
         */
        get: operations["metrics"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Stream Events
         * @description Server-sent events: `id` is the number, `event` the kind, `data` the event as JSON. Without `after`, or where that is a number of
         *     another database, only what is new, and before it the `tail`. A `lagged` event stands where a slow reader lost some: `data.lost` says how many.
         */
        get: operations["stream_events"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/logs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Model Logs
         * @description The engine's log: of the launch that runs, or of the last one. A slow reader loses the oldest lines of its own
         *     queue: a `dropped` event says how many (in plain text, a line).
         */
        get: operations["model_logs"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/launchers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Launchers
         * @description Zygotes, their memory, and how engines were started.
         */
        get: operations["list_launchers"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Models
         * @description Every model, declared in the file or made over the API.
         */
        get: operations["list_models"];
        put?: never;
        /**
         * Create Model
         * @description Make a model. It is kept in the database and can be used at once.
         */
        post: operations["create_model"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/copy": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Copy Model
         * @description Make a model of another one, of the configuration file or not, that can be changed over the API. It has the same declaration but
         *     for aliases and LoRA adapters, whose names the other one keeps.
         */
        post: operations["copy_model"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/start": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Want it READY. An operator's start makes room at once and forgets earlier failures. */
        post: operations["start_model"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/restart": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Drain, stop, start again. */
        post: operations["restart_model"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/sleep": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Drain, then put to sleep; 409 where the engine has no sleep mode. */
        post: operations["sleep_model"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/wake": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Wake it; 409 when it does not sleep. */
        post: operations["wake_model"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/drain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** No new requests; let finish what runs, however long it takes; then stop. */
        post: operations["drain_model"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/undrain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Take a drain back; 409 when its memory was promised to another model. */
        post: operations["undrain_model"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/pin": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Never swap it out, until `unpin` or a restart of the server. */
        post: operations["pin_model"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/unpin": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** It may be swapped out again. */
        post: operations["unpin_model"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/reset": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Forget the failures of a model that is FAILED or in BACKOFF. */
        post: operations["reset_model"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/stop": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Stop Model
         * @description Drain and stop; a load is called off.
         */
        post: operations["stop_model"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}/history": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Model History
         * @description Its starts, the latest first.
         */
        get: operations["model_history"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/models/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get Model
         * @description One model, by id or alias.
         */
        get: operations["get_model"];
        /**
         * Replace Model
         * @description Another declaration for a model made over the API; an engine that no longer fits it is drained and started again.
         */
        put: operations["replace_model"];
        post?: never;
        /**
         * Delete Model
         * @description Take away a model made over the API: nobody can ask for it any more, and what runs is let finish.
         */
        delete: operations["delete_model"];
        options?: never;
        head?: never;
        /**
         * Change Model
         * @description Changes to a model made over the API, merged as RFC 7396 says: null takes a key away.
         */
        patch: operations["change_model"];
        trace?: never;
    };
    "/api/devices/leases": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Device Leases
         * @description Those that wait for their room, that are held, and that ended but whose models are still coming back.
         */
        get: operations["list_device_leases"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/devices/leases/{lease}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get Device Lease
         * @description One of them.
         */
        get: operations["get_device_lease"];
        put?: never;
        post?: never;
        /**
         * End Device Lease
         * @description End it now: the memory is the models' again.
         */
        delete: operations["end_device_lease"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/devices/{device}/leases": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Ask For Device Lease
         * @description Drain, sleep or stop the cheapest models until that much of the device is free, and keep it free for a while; then
         *     what went and was wanted is started again. 409 with the reason where it can never be.
         */
        post: operations["ask_for_device_lease"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/instances": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Instances
         * @description Every instance that ran or is about to.
         */
        get: operations["list_instances"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/devices": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Devices
         * @description Every device: capacity, what others use, who has reserved what.
         */
        get: operations["list_devices"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/queue": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get Queue
         * @description Who waits for what, and why.
         */
        get: operations["get_queue"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/plan": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get Plan
         * @description What a load would do: who would go, where it would run, how long it would take. Changes nothing.
         */
        get: operations["get_plan"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/status": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get Status
         * @description One look at the whole server.
         */
        get: operations["get_status"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/requests/running": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Running
         * @description Requests and realtime sessions under way, in all processes of the server: how far each is, and since when.
         */
        get: operations["list_running"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/requests": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Requests
         * @description The request ledger, newest first. Rows are written a moment after their request ended.
         */
        get: operations["list_requests"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/requests/{id}/capture": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get Capture
         * @description A request and its answer as they passed, by the request's id or `X-Request-Id`, without secrets. Whoever looks is in the events.
         */
        get: operations["get_capture"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/keys": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Keys
         * @description Every key ever issued, the revoked ones too; never a secret.
         */
        get: operations["list_keys"];
        put?: never;
        /**
         * Create Key
         * @description A new key. Its secret is in the answer and can never be had again.
         */
        post: operations["create_key"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/keys/export": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Export Keys
         * @description All keys with their hashes and without secrets: for a server with the same `auth.secret`.
         */
        get: operations["export_keys"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/keys/import": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Import Keys
         * @description Take over exported keys, all or none; 409 when one is here already or they belong to another server's secret.
         */
        post: operations["import_keys"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/keys/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get Key
         * @description One key: what it may, and what it uses now.
         */
        get: operations["get_key"];
        put?: never;
        post?: never;
        /**
         * Revoke Key
         * @description Revoke a key; it stops working at once, and so does what waits or runs with it (`auth.revoke_running`). Its row stays, for
         *     the ledger names it.
         */
        delete: operations["revoke_key"];
        options?: never;
        head?: never;
        /**
         * Change Key
         * @description Change what a key may do; in force at once, also for the next request of a connection that is open.
         */
        patch: operations["change_key"];
        trace?: never;
    };
    "/api/keys/{id}/rotate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Rotate Key
         * @description Another secret for the same key, shown this once. The one of before is good for `overlap` more, at most one of them.
         */
        post: operations["rotate_key"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/audit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Audit
         * @description What was done, newest first. Entries cannot be changed, and are deleted by age alone (`retention.audit`).
         */
        get: operations["list_audit"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/requests/{id}/cancel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Cancel Request
         * @description End a request or a realtime session that waits or runs, by its id or its `X-Request-Id`. Its client gets an error of its API with
         *     the code `cancelled`: 410, or an event where the stream has begun. 409 when it is over, 404 when it is not known.
         */
        post: operations["cancel_request"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/requests/{id}/replay": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Replay Request
         * @description Send a captured request again, by its id or `X-Request-Id`: with the key of whoever asks for it, which has to have the scope
         *     `infer` too, and to the model that has its name now. The answer is the model's, streamed where the request asked for that. 409
         *     where not all of its body was kept.
         */
        post: operations["replay_request"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/usage": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get Usage
         * @description Requests, tokens, times and costs, added up. Requests of this moment are in it a moment after their end.
         */
        get: operations["get_usage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/series": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get Series
         * @description Samples of every 10 seconds, of every minute when they are older, then of every 15 minutes (`series`). A time of which
         *     nothing is known has null: the server was down, or the model had no engine and nobody waited.
         */
        get: operations["get_series"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/webhooks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Webhooks
         * @description The hooks of the configuration, without their addresses, and how they do.
         */
        get: operations["list_webhooks"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/webhooks/dead": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Dead Letters
         * @description What was given up, newest first; the oldest of more than 200 are forgotten.
         */
        get: operations["list_dead_letters"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/webhooks/dead/retry": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Retry Dead Letters
         * @description Send all of them again, whose hook is still configured.
         */
        post: operations["retry_dead_letters"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/webhooks/dead/{id}/retry": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Retry Dead Letter
         * @description Send it again, with the same id and a new signature.
         */
        post: operations["retry_dead_letter"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/session": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get Session
         * @description Who asks, by key, session or proxy, and what they may do. Any good key.
         */
        get: operations["get_session"];
        put?: never;
        /**
         * Sign In
         * @description Sign in with a key: the answer sets a cookie that only this server reads (HttpOnly, SameSite=Strict) and that ends by itself
         *     (`auth.session`). After too many wrong keys 429 (`auth.sign_in_tries`).
         */
        post: operations["sign_in"];
        /**
         * Sign Out
         * @description Sign out here. Harmless for who is not signed in.
         */
        delete: operations["sign_out"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sessions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Sign Out Everywhere
         * @description End all sessions of this key, on whatever machine.
         */
        delete: operations["sign_out_everywhere"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/config/reload": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Reload Config
         * @description Read the configuration again, as SIGHUP does, and apply the difference. A configuration with an error changes nothing: 422
         *     names each error with its line.
         */
        post: operations["reload_config"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/settings": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get Settings
         * @description Every setting: its value without secrets, where it was said, and whether a reload can change it.
         */
        get: operations["get_settings"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/profiles": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Profiles
         * @description All that are declared, and which one is active.
         */
        get: operations["list_profiles"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/profiles/deactivate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Deactivate Profile
         * @description No profile: pins, preloads and aliases are as the models say.
         */
        post: operations["deactivate_profile"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/profiles/{name}/activate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Activate Profile
         * @description Make it the active one: its pins, preloads and aliases hold from now on, also after a restart, until another one is active. What
         *     runs is not disturbed.
         */
        post: operations["activate_profile"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/pulls": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Pulls
         * @description Those that run or wait, and the last that are over; the latest first.
         */
        get: operations["list_pulls"];
        put?: never;
        /**
         * Start Pull
         * @description Download the weights of a model. The answer comes when the hub has said what there is to come: an id that is not there is 404,
         *     one that is gated or a server that is offline 409, no room on the disk 507, no hub 503, and then nothing was downloaded. One after the
         *     other; what was broken off is gone on with.
         */
        post: operations["start_pull"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/pulls/{pull}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get Pull
         * @description How far it is.
         */
        get: operations["get_pull"];
        put?: never;
        post?: never;
        /**
         * Cancel Pull
         * @description End it. What has come stays on the disk for the next try.
         */
        delete: operations["cancel_pull"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/weights": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List Weights
         * @description What lies in the caches of Hugging Face that engines here use, and who uses it.
         */
        get: operations["list_weights"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/weights/prune": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Prune Weights
         * @description Delete weights from the disk: never those that a declared model uses, or that are being downloaded.
         */
        post: operations["prune_weights"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /**
         * AccuracyOut
         * @description How forecasts of READY turned out: the latest hundred.
         */
        AccuracyOut: {
            /** Compared */
            compared: number;
            /**
             * Typical Error S
             * @description Whichever way; null before the first comparison.
             */
            typical_error_s: number | null;
            /**
             * Typical Ratio
             * @description By how much of the longer of the two the other fell short: 0 is exact, 0.5 is twice or half.
             */
            typical_ratio: number | null;
            /**
             * Kept At Latest
             * @description The share that was there within `at_latest_s`; nine of ten is what is aimed at.
             */
            kept_at_latest: number | null;
        };
        /**
         * Act
         * @description What would happen first if somebody asked for the model now.
         * @enum {string}
         */
        Act: "none" | "loading" | "start" | "wake" | "wait" | "refuse";
        /**
         * ActivatedOut
         * @description What a switch of the profile changed, or would.
         */
        ActivatedOut: {
            /**
             * Applied
             * @description False for a dry run.
             */
            applied: boolean;
            /** Profile */
            profile: string | null;
            /** Before */
            before: string | null;
            /** Changes */
            changes: components["schemas"]["ModelChangeOut"][];
            /**
             * Missing
             * @description Models that the profile names and that are not there.
             */
            missing: string[];
        };
        /**
         * AuditEntryOut
         * @description One act.
         */
        AuditEntryOut: {
            /**
             * Id
             * @description Never repeats.
             */
            id: string;
            /**
             * At
             * @description Unix time of the end of the act.
             */
            at: number;
            /**
             * Actor
             * @description The id of the key that acted, or who else did: `local` (a command on the server's machine), `signal`, `file`, `schedule`.
             */
            actor: string;
            /**
             * Name
             * @description The actor's name, as it was then.
             */
            name: string;
            /**
             * Source
             * @description From where: the client's address, or how else it came.
             */
            source: string;
            /**
             * Act
             * @description What was asked for, as operations are called in the OpenAPI document: `start_model`.
             */
            act: string;
            /**
             * Kind
             * @description What it was done to: `models`, `keys`, ...
             */
            kind: string;
            /**
             * Object
             * @description Which of them; empty where there is only one.
             */
            object: string;
            /**
             * Status
             * @description As HTTP tells it: 403 is an act that was refused.
             */
            status: number;
            /** Before */
            before: unknown;
            /**
             * After
             * @description What was different: members that stayed as they were are left out, and secrets are never told. Null where there was nothing, or
             *     nothing is known.
             */
            after: unknown;
            /**
             * Request
             * @description `X-Request-Id` of the answer, to find it in logs.
             */
            request: string;
        };
        /**
         * AuditFormat
         * @enum {string}
         */
        AuditFormat: "json" | "jsonl" | "csv";
        /** AuditOut */
        AuditOut: {
            /** Entries */
            entries: components["schemas"]["AuditEntryOut"][];
            /**
             * Next
             * @description Give it as `before` for the next page; null when this was the last.
             */
            next: number | null;
        };
        /**
         * BodyOut
         * @description A body, or its beginning.
         */
        BodyOut: {
            /** Text */
            text?: string | null;
            /**
             * Base64
             * @description What is no text.
             */
            base64?: string | null;
            /**
             * Size
             * @description Bytes of the whole.
             */
            size: number;
            /**
             * Cut
             * @description Only the beginning was kept (`captures.body`).
             */
            cut: boolean;
            /**
             * Redacted
             * @description Values of `captures.redact` were taken out.
             */
            redacted: boolean;
        };
        /**
         * By
         * @description By what somebody is known.
         * @enum {string}
         */
        By: "key" | "session" | "proxy" | "none";
        /** CacheOut */
        CacheOut: {
            /** Path */
            path: string;
            /**
             * Free
             * @description Bytes of its disk.
             */
            free: number;
            /** Total */
            total: number;
        };
        /**
         * CachedWeightsOut
         * @description The weights of one model. Bytes.
         */
        CachedWeightsOut: {
            /** Model */
            model: string;
            /**
             * Size
             * @description 0 when they are not on this machine (yet).
             */
            size: number;
            /**
             * Cached
             * @description In the page cache, as last measured.
             */
            cached: number;
            /**
             * Measured
             * @description False where the system does not tell; then `cached` is what was read ahead here.
             */
            measured: boolean;
            /**
             * Kept
             * @description Whether it has a part of the budget now.
             */
            kept: boolean;
        };
        /** CancelledOut */
        CancelledOut: {
            /** Id */
            id: string;
            /**
             * Cancelled
             * @description Always true: whatever else became of it is a refusal.
             */
            cancelled: boolean;
        };
        /**
         * CaptureOut
         * @description A request and its answer as they passed, without secrets.
         */
        CaptureOut: {
            /** Id */
            id: string;
            /**
             * Row
             * @description Its row of the ledger: model, key, outcome, times, tokens.
             */
            row: {
                [key: string]: unknown;
            };
            request: components["schemas"]["CapturedRequestOut"];
            answer: components["schemas"]["CapturedAnswerOut"];
        };
        /** CapturedAnswerOut */
        CapturedAnswerOut: {
            /** Status */
            status: number;
            /** Headers */
            headers: [
                string,
                string
            ][];
            body: components["schemas"]["BodyOut"];
        };
        /** CapturedRequestOut */
        CapturedRequestOut: {
            /** Method */
            method: string;
            /** Target */
            target: string;
            /** Headers */
            headers: [
                string,
                string
            ][];
            /** @description Empty for a form, of which nothing is kept. */
            body: components["schemas"]["BodyOut"];
        };
        /** CopyIn */
        CopyIn: {
            /**
             * Id
             * @description The id of the new model.
             */
            id: string;
        };
        /** DeadLetterOut */
        DeadLetterOut: {
            /**
             * Id
             * @description Of the delivery, as in `X-VLLM-MM-Delivery`.
             */
            id: string;
            /** Hook */
            hook: string;
            /** Event */
            event: string;
            /**
             * Seq
             * @description The number of the event.
             */
            seq: number;
            /**
             * Body
             * @description What was to be sent.
             */
            body: string;
            /** Reason */
            reason: string;
            /** Attempts */
            attempts: number;
            /**
             * At
             * @description Unix time at which it was given up.
             */
            at: number;
        };
        /** DeletedOut */
        DeletedOut: {
            /** Id */
            id: string;
            /** @description The engine on its way out; null when none ran. */
            instance: components["schemas"]["InstanceOut"] | null;
        };
        /**
         * DeviceLeaseIn
         * @description What is asked for.
         */
        DeviceLeaseIn: {
            /**
             * Free
             * @description Bytes, or text such as "10GiB".
             */
            free: number | string;
            /**
             * For
             * @description From the moment at which the memory is free: seconds, or text such as "2h"; at most 7 days.
             */
            for: number | string;
            /**
             * Note
             * @description What it is for; for people.
             * @default
             */
            note: string;
        };
        /**
         * DeviceLeaseOut
         * @description Device memory for something that is not an engine of this server.
         */
        DeviceLeaseOut: {
            /** Id */
            id: string;
            /** Device */
            device: string;
            /** Bytes */
            bytes: number;
            stage: components["schemas"]["vllm_mm__domain__device_leases__Stage"];
            /**
             * Reason
             * @description What it waits for, or why it ended.
             */
            reason: string;
            /** Note */
            note: string;
            /** By */
            by: string;
            /** Asked At */
            asked_at: number;
            /** Held At */
            held_at: number | null;
            /**
             * Ends At
             * @description Null until it is held.
             */
            ends_at: number | null;
            /** Ended At */
            ended_at: number | null;
            /** Evicted */
            evicted: components["schemas"]["EvictedOut"][];
        };
        /** DeviceOut */
        DeviceOut: {
            /** Id */
            id: string;
            /** Kind */
            kind: string;
            /** Name */
            name: string;
            /** Capacity */
            capacity: number;
            /** Headroom */
            headroom: number;
            /**
             * Foreign
             * @description In use by processes that are not ours.
             */
            foreign: number;
            /** Free */
            free: number;
            /**
             * Problem
             * @description Why nothing new is placed on it; empty when it is well.
             */
            problem: string;
            /**
             * Foreign Processes
             * @description Whose the foreign use is, where that is known; on the host's memory only the largest.
             */
            foreign_processes: components["schemas"]["ForeignProcessOut"][];
            /** Reservations */
            reservations: components["schemas"]["ReservationOut"][];
        };
        /** DeviceWishOut */
        DeviceWishOut: {
            /** Count */
            count: number;
            /** Ids */
            ids: string[];
        };
        /**
         * DistrustOut
         * @description A model whose warm starts failed; it starts the other way until its declaration or its packages change.
         */
        DistrustOut: {
            /** Model */
            model: string;
            /** Zygote */
            zygote: string;
            /** Reason */
            reason: string;
        };
        /**
         * DryRunOut
         * @description What a change would do. Nothing was changed.
         */
        DryRunOut: {
            /**
             * Dry Run
             * @default true
             * @constant
             */
            dry_run: true;
            change: components["schemas"]["ModelChangeOut"];
            /** @description The memory that the model would take; null for one that is removed. */
            footprint: components["schemas"]["FootprintOut"] | null;
            /**
             * Fits
             * @description Of each device that it may use; empty for a model that is removed.
             */
            fits: components["schemas"]["FitOut"][];
            /**
             * Notes
             * @description What could not be checked, and why.
             */
            notes: string[];
        };
        /**
         * Effect
         * @description What becomes of the model and its engine.
         * @enum {string}
         */
        Effect: "new" | "removed" | "restarted" | "updated";
        /**
         * EngineKind
         * @description How the engine process is made.
         * @enum {string}
         */
        EngineKind: "vllm" | "command" | "sim";
        /** ErrorBody */
        ErrorBody: {
            /** Message */
            message: string;
            /** Type */
            type: string;
            /** Param */
            param: string | null;
            /** Code */
            code: string;
            /**
             * Reason
             * @description Finer than `code`, where the scheduler or the state of a model had to do with it: see docs/scheduling.md.
             * @default
             */
            reason: string;
        };
        /**
         * ErrorOut
         * @description Every refusal; the message says what to do.
         */
        ErrorOut: {
            error: components["schemas"]["ErrorBody"];
        };
        /** EvictedOut */
        EvictedOut: {
            /** Model */
            model: string;
            /**
             * Wanted
             * @description It comes back when the lease ends.
             */
            wanted: boolean;
        };
        /**
         * ExportedKey
         * @description A key with its hash and without its secret.
         */
        ExportedKey: {
            /** Id */
            id: string;
            /** Name */
            name: string;
            /** Prefix */
            prefix: string;
            /** Hash */
            hash: string;
            /** Scopes */
            scopes: components["schemas"]["Scope"][];
            /** Models */
            models?: string[] | null;
            /** Acts */
            acts: components["schemas"]["Right"][];
            /** Weight */
            weight: number;
            /** Progress */
            progress: boolean;
            limits: components["schemas"]["LimitsIn"];
            /** Created At */
            created_at: number;
            /** Expires At */
            expires_at?: number | null;
            /** Revoked At */
            revoked_at?: number | null;
        };
        /** FieldChangeOut */
        FieldChangeOut: {
            /**
             * Key
             * @description As in the configuration: `args.max-model-len`.
             */
            key: string;
            /**
             * Before
             * @description Null where it was not there. Values that look like secrets are hidden.
             */
            before: unknown;
            /** After */
            after: unknown;
        };
        /**
         * FitOut
         * @description Whether a device has room for the model, or for one of its ranks.
         */
        FitOut: {
            /** Device */
            device: string;
            /** @description `now`; `room`: when `victims` make room; `held`: large enough, but whoever has it would not go now; `never`; `out`: out of use. */
            fits: components["schemas"]["Fits"];
            /** Free */
            free: number;
            /** Capacity */
            capacity: number;
            /**
             * Victims
             * @description Models that would have to go, in the order of eviction.
             */
            victims: string[];
            /**
             * Reason
             * @description Why not; empty where it fits.
             */
            reason: string;
        };
        /**
         * Fits
         * @description Whether one rank of it fits on a device.
         * @enum {string}
         */
        Fits: "now" | "room" | "held" | "never" | "out";
        /**
         * FootprintOut
         * @description Sizes in bytes on each device.
         */
        FootprintOut: {
            /**
             * Per Device
             * @description What is reserved.
             */
            per_device: number;
            /**
             * Source
             * @enum {string}
             */
            source: "declared" | "learned" | "estimated";
            /**
             * Spread
             * @description Standard deviation of what its launches took; 0 unless learned from several.
             */
            spread: number;
            /** Weights */
            weights: number;
            /** Kv Cache */
            kv_cache: number;
            /**
             * Overhead
             * @description Runtime, activations, graphs. The three are 0 where only the sum is known.
             */
            overhead: number;
            /**
             * Kv Tokens
             * @description Tokens that the KV cache holds; null when that is not known.
             */
            kv_tokens: number | null;
            /**
             * Kv Token Bytes
             * @description What one token takes in it.
             */
            kv_token_bytes: number | null;
            /**
             * Samples
             * @description Launches that it was learned from.
             */
            samples: number;
            /** Learned At */
            learned_at: number | null;
            /**
             * Notes
             * @description What was assumed, and what is not counted.
             */
            notes: string[];
        };
        /** ForeignProcessOut */
        ForeignProcessOut: {
            /** Pid */
            pid: number;
            /** Name */
            name: string;
            /**
             * Bytes
             * @description Null where the driver does not tell.
             */
            bytes: number | null;
        };
        /**
         * Goal
         * @description What a drain leads to.
         * @enum {string}
         */
        Goal: "sleep" | "stop";
        /**
         * GroupBy
         * @description What sums are made by.
         * @enum {string}
         */
        GroupBy: "key" | "model" | "day" | "hour";
        /** HealthOut */
        HealthOut: {
            /**
             * Status
             * @constant
             */
            status: "ok";
        };
        /** HistoryOut */
        HistoryOut: {
            /** Starts */
            starts: components["schemas"]["StartOut"][];
        };
        /**
         * HostMemoryOut
         * @description The host's memory for engines that sleep.
         */
        HostMemoryOut: {
            /**
             * Budget
             * @description Bytes for all of them; null sets no bound, 0 turns sleep off.
             */
            budget: number | null;
            /**
             * Held
             * @description Bytes by model: of those that sleep, are about to, or wake.
             */
            held: {
                [key: string]: number;
            };
            /**
             * Leaving
             * @description Bytes by model: of those that were told to stop and are not gone yet.
             */
            leaving: {
                [key: string]: number;
            };
            /**
             * Used
             * @description The sum of both, which the budget bounds.
             */
            used: number;
            /**
             * Free
             * @description Bytes of the host's memory that could be used now without swapping, as the system tells; whoever uses the rest.
             */
            free: number;
        };
        /** IdleOut */
        IdleOut: {
            /** Sleep After */
            sleep_after: number | null;
            /** Stop After */
            stop_after: number | null;
        };
        /** ImportedOut */
        ImportedOut: {
            /** Imported */
            imported: number;
        };
        /**
         * InstanceOut
         * @description One model's engine, running or not.
         */
        InstanceOut: {
            /** Id */
            id: string;
            /** Model */
            model: string;
            state: components["schemas"]["State"];
            progress: components["schemas"]["ProgressOut"];
            /** Reason */
            reason: string;
            /** Devices */
            devices: string[];
            /** Pid */
            pid: number | null;
            /** In Flight */
            in_flight: number;
            /**
             * Frozen
             * @description Of those in flight: requests that stand still in the sleeping engine and go on when it wakes.
             */
            frozen: number;
            /** Queued */
            queued: number;
            /** Since */
            since: number;
            /** Failures */
            failures: number;
            memory: components["schemas"]["MemoryOut"];
            /**
             * Generation
             * @description Counts launches; 0 when it never ran.
             */
            generation: number;
            /**
             * Launcher
             * @description How its process came into being: `warm` (forked from a zygote) or `local`; empty without one.
             */
            launcher: string;
            /** Pinned */
            pinned: boolean;
            /**
             * Pending
             * @description Something is under way: a load, a drain, a stop, or a wish that waits for room.
             */
            pending: boolean;
            /**
             * Drain S
             * @description How long a drain would take, or the one under way still takes: until its last request ends, as likely sooner as later; at most
             *     `swap.drain_timeout`.
             */
            drain_s: number;
            /** Idle S */
            idle_s: number | null;
        };
        /** KeptOut */
        KeptOut: {
            /** Repo */
            repo: string;
            /** Why */
            why: string;
        };
        /** KeyIn */
        KeyIn: {
            /**
             * Scopes
             * @default [
             *       "infer"
             *     ]
             */
            scopes: components["schemas"]["Scope"][];
            /**
             * Models
             * @description Models that it may use: ids, aliases (which are resolved now), or patterns with `*`, `?` and `[...]`; null means all.
             */
            models?: string[] | null;
            /**
             * Acts
             * @description What its requests may cause, and what it may look at: `load` (start or wake a model), `evict` (have another model make room),
             *     `logs`, `capture`.
             * @default [
             *       "capture",
             *       "evict",
             *       "load",
             *       "logs"
             *     ]
             */
            acts: components["schemas"]["Right"][];
            /**
             * Weight
             * @description Its share of a model's slots beside other keys that wait for the same model.
             * @default 1
             */
            weight: number;
            /**
             * Progress
             * @description Its streams get progress comments while they wait, as with `X-VLLM-MM-Progress: 1`.
             * @default false
             */
            progress: boolean;
            /** @default {} */
            limits: components["schemas"]["LimitsIn"];
            /**
             * Name
             * @description Its label: whose it is, or what for.
             */
            name: string;
            /**
             * Expires In
             * @description Seconds until it ends by itself; null means never.
             */
            expires_in?: number | null;
        };
        /** KeyOut */
        KeyOut: {
            /** Id */
            id: string;
            /** Name */
            name: string;
            /**
             * Prefix
             * @description The beginning of its secret, to recognise it by.
             */
            prefix: string;
            /** Scopes */
            scopes: components["schemas"]["Scope"][];
            /**
             * Models
             * @description Model ids and patterns that it may use; null means all.
             */
            models: string[] | null;
            /** Acts */
            acts: components["schemas"]["Right"][];
            /** Weight */
            weight: number;
            /** Progress */
            progress: boolean;
            limits: components["schemas"]["LimitsOut"];
            /** @description Null where nothing limits it. */
            used: components["schemas"]["StandingOut"] | null;
            /** Created At */
            created_at: number;
            /** Expires At */
            expires_at: number | null;
            /** Revoked At */
            revoked_at: number | null;
            /**
             * Rotated Until
             * @description Until when the secret of before the last rotation is good as well.
             */
            rotated_until: number | null;
            /** Active */
            active: boolean;
        };
        /**
         * KeyPatch
         * @description What is left out stays as it is. `limits` are merged: null takes one away.
         */
        KeyPatch: {
            /**
             * Scopes
             * @default [
             *       "infer"
             *     ]
             */
            scopes: components["schemas"]["Scope"][];
            /**
             * Models
             * @description Models that it may use: ids, aliases (which are resolved now), or patterns with `*`, `?` and `[...]`; null means all.
             */
            models?: string[] | null;
            /**
             * Acts
             * @description What its requests may cause, and what it may look at: `load` (start or wake a model), `evict` (have another model make room),
             *     `logs`, `capture`.
             * @default [
             *       "capture",
             *       "evict",
             *       "load",
             *       "logs"
             *     ]
             */
            acts: components["schemas"]["Right"][];
            /**
             * Weight
             * @description Its share of a model's slots beside other keys that wait for the same model.
             * @default 1
             */
            weight: number;
            /**
             * Progress
             * @description Its streams get progress comments while they wait, as with `X-VLLM-MM-Progress: 1`.
             * @default false
             */
            progress: boolean;
            /** @default {} */
            limits: components["schemas"]["LimitsIn"];
            /**
             * Name
             * @default
             */
            name: string;
            /**
             * Expires In
             * @description Seconds from now; null: it does not end by itself.
             */
            expires_in?: number | null;
        };
        /**
         * KeysFile
         * @description What `keys export` writes and `keys import` reads.
         */
        KeysFile: {
            /**
             * Form
             * @constant
             */
            form: "vllm-mm keys 1";
            /**
             * Secret
             * @description Which server's secret the hashes were made with; tells nothing of it.
             */
            secret: string;
            /** Keys */
            keys: components["schemas"]["ExportedKey"][];
        };
        /**
         * Kind
         * @description What a rule does.
         * @enum {string}
         */
        Kind: "default" | "override" | "limit";
        /**
         * LauncherKind
         * @description How the process comes into being; the engine that runs in the end is the same.
         * @enum {string}
         */
        LauncherKind: "auto" | "warm" | "local";
        /**
         * LaunchersOut
         * @description What the launchers did since the server started.
         */
        LaunchersOut: {
            /**
             * Starts
             * @description Of processes, by launcher: `local`, `warm`.
             */
            starts: {
                [key: string]: number;
            };
            /**
             * Fallbacks
             * @description Warm starts that were tried or asked for and became local ones.
             */
            fallbacks: number;
            /** Last Fallback */
            last_fallback: string;
            /** Zygotes */
            zygotes: components["schemas"]["ZygoteOut"][];
            /** Distrusted */
            distrusted: components["schemas"]["DistrustOut"][];
            read_ahead: components["schemas"]["ReadAheadOut"];
        };
        /**
         * Level
         * @description Where a rule was said, from the farthest to the nearest.
         * @enum {string}
         */
        Level: "system" | "model" | "alias";
        /**
         * LimitsIn
         * @description How much a key may use. Null does not limit; docs/security.md says how each is counted.
         */
        LimitsIn: {
            /**
             * Concurrency
             * @description Requests at the same time, those that wait for a model too.
             */
            concurrency?: number | null;
            /** Requests Per Minute */
            requests_per_minute?: number | null;
            /**
             * Tokens Per Minute
             * @description Prompt and completion together.
             */
            tokens_per_minute?: number | null;
            /**
             * Tokens Per Day
             * @description Days and months begin at midnight UTC.
             */
            tokens_per_day?: number | null;
            /** Tokens Per Month */
            tokens_per_month?: number | null;
            /**
             * Device Seconds Per Day
             * @description Seconds on a model, times its devices.
             */
            device_seconds_per_day?: number | null;
            /** Device Seconds Per Month */
            device_seconds_per_month?: number | null;
        };
        /**
         * LimitsOut
         * @description Null does not limit.
         */
        LimitsOut: {
            /** Concurrency */
            concurrency: number | null;
            /** Requests Per Minute */
            requests_per_minute: number | null;
            /** Tokens Per Minute */
            tokens_per_minute: number | null;
            /** Tokens Per Day */
            tokens_per_day: number | null;
            /** Tokens Per Month */
            tokens_per_month: number | null;
            /** Device Seconds Per Day */
            device_seconds_per_day: number | null;
            /** Device Seconds Per Month */
            device_seconds_per_month: number | null;
        };
        /**
         * LineOut
         * @description One line of a chart.
         */
        LineOut: {
            metric: components["schemas"]["Metric"];
            /** Unit */
            unit: string;
            /** Model */
            model: string | null;
            /** Device */
            device: string | null;
            /**
             * Values
             * @description One for each of `at`; null where nothing is known.
             */
            values: (number | null)[];
        };
        /**
         * MarkOut
         * @description Something that was done to a model's engine.
         */
        MarkOut: {
            /** At */
            at: number;
            /**
             * Kind
             * @description `load` (it was decided), `ready`, `sleep`, `stop`, or `failed`.
             */
            kind: string;
            /** Model */
            model: string;
            /**
             * Reason
             * @description The scheduler's, or who wanted it.
             */
            reason: string;
            /**
             * Victims
             * @description Models that have to go for a load.
             */
            victims: string[];
        };
        /** MemoryOut */
        MemoryOut: {
            /**
             * Reserved
             * @description Per device.
             */
            reserved: {
                [key: string]: number;
            };
            /**
             * Used
             * @description What the process tree takes of the host's memory now.
             */
            used: number;
        };
        /**
         * Metric
         * @description What can be asked for.
         * @enum {string}
         */
        Metric: "tokens" | "requests" | "ttft_p50" | "ttft_p95" | "itl_p50" | "itl_p95" | "queued" | "oldest" | "in_flight" | "kv" | "memory" | "foreign" | "free";
        /**
         * ModelChangeOut
         * @description What changes of one model.
         */
        ModelChangeOut: {
            /** Model */
            model: string;
            /** @description `restarted`: its engine finishes what runs and stops, and is new when next wanted. `updated`: its engine does not notice. */
            effect: components["schemas"]["Effect"];
            /**
             * Text
             * @description The effect, for people.
             */
            text: string;
            /**
             * Fields
             * @description Empty for a model that is new or removed.
             */
            fields: components["schemas"]["FieldChangeOut"][];
        };
        /**
         * ModelOut
         * @description A model: what was declared, where, what it takes, and its engine.
         */
        ModelOut: {
            /** Id */
            id: string;
            source: components["schemas"]["Source"];
            engine: components["schemas"]["EngineKind"];
            /** Model */
            model: string | null;
            /** Executable */
            executable: string;
            launcher: components["schemas"]["LauncherKind"];
            /** Args */
            args: {
                [key: string]: unknown;
            };
            /**
             * Env
             * @description Values that look like secrets are shown to administrators only.
             */
            env: {
                [key: string]: string;
            };
            /** Command */
            command: string[];
            /** Sim */
            sim: {
                [key: string]: unknown;
            };
            task: components["schemas"]["Task"];
            /** Aliases */
            aliases: string[];
            devices: components["schemas"]["DeviceWishOut"];
            /** Memory */
            memory: number | null;
            /**
             * Kv Cache
             * @description Bytes on each device, where somebody said how much.
             */
            kv_cache: number | null;
            /**
             * Pinned
             * @description As it is now: declared, or set by `pin` and `unpin`.
             */
            pinned: boolean;
            /** Preload */
            preload: boolean;
            /**
             * Schedule
             * @description Times of the week in which it is kept ready.
             */
            schedule: string[];
            /** @description How they stand; null for a model without any. */
            schedule_now: components["schemas"]["ScheduleOut"] | null;
            /** Priority */
            priority: number;
            /** Concurrency */
            concurrency: number;
            /**
             * Progress
             * @description Clients of its streams see comments while they wait, also those that did not ask.
             */
            progress: boolean;
            /**
             * Stream Usage
             * @description Its engine is asked for the token counts of streams whose clients did not ask.
             */
            stream_usage: boolean;
            idle: components["schemas"]["IdleOut"];
            start: components["schemas"]["StartLimitsOut"];
            retry: components["schemas"]["RetryOut"];
            sleep: components["schemas"]["SleepOut"];
            /** Request Defaults */
            request_defaults: {
                [key: string]: unknown;
            };
            /** Request Overrides */
            request_overrides: {
                [key: string]: unknown;
            };
            /**
             * Request Limits
             * @description These three are what the model itself says.
             */
            request_limits: {
                [key: string]: unknown;
            };
            /**
             * Request Rules
             * @description What holds for requests, by the name that they ask for; names without rules are left out.
             */
            request_rules: {
                [key: string]: components["schemas"]["RequestRuleOut"][];
            };
            /** Lora */
            lora: {
                [key: string]: string;
            };
            price: components["schemas"]["PriceOut"] | null;
            /** Fingerprint */
            fingerprint: string;
            footprint: components["schemas"]["FootprintOut"];
            /** @description Null when it never ran. */
            instance: components["schemas"]["InstanceOut"] | null;
        };
        /** NewKeyOut */
        NewKeyOut: {
            /** Id */
            id: string;
            /** Name */
            name: string;
            /**
             * Prefix
             * @description The beginning of its secret, to recognise it by.
             */
            prefix: string;
            /** Scopes */
            scopes: components["schemas"]["Scope"][];
            /**
             * Models
             * @description Model ids and patterns that it may use; null means all.
             */
            models: string[] | null;
            /** Acts */
            acts: components["schemas"]["Right"][];
            /** Weight */
            weight: number;
            /** Progress */
            progress: boolean;
            limits: components["schemas"]["LimitsOut"];
            /** @description Null where nothing limits it. */
            used: components["schemas"]["StandingOut"] | null;
            /** Created At */
            created_at: number;
            /** Expires At */
            expires_at: number | null;
            /** Revoked At */
            revoked_at: number | null;
            /**
             * Rotated Until
             * @description Until when the secret of before the last rotation is good as well.
             */
            rotated_until: number | null;
            /** Active */
            active: boolean;
            /**
             * Secret
             * @description Shown this once; only its hash is kept.
             */
            secret: string;
        };
        /**
         * OnTimeout
         * @description What a drain does with the leases that are left at its deadline.
         * @enum {string}
         */
        OnTimeout: "cut" | "wait" | "freeze" | "keep";
        /**
         * Outcome
         * @description How a request ended. Exactly one per request.
         * @enum {string}
         */
        Outcome: "ok" | "upstream_error" | "bad_request" | "refused" | "queue_full" | "wait_expired" | "start_failed" | "torn_down" | "client_gone" | "upstream_died" | "cut" | "timeout" | "shutdown" | "internal";
        /**
         * PlanOut
         * @description What a load would do. Nothing was changed.
         */
        PlanOut: {
            /** Model */
            model: string;
            act: components["schemas"]["Act"];
            /** @description Why, as a code; null where nothing has to be decided. */
            code: components["schemas"]["Reason"] | null;
            /** Reason */
            reason: string;
            state: components["schemas"]["State"];
            /**
             * Devices
             * @description Bytes that it would take, by device.
             */
            devices: {
                [key: string]: number;
            };
            /** Bytes */
            bytes: number;
            /**
             * Victims
             * @description In the order in which they would be told to go.
             */
            victims: components["schemas"]["VictimOut"][];
            /**
             * Stopped
             * @description Sleepers that would have to go for the sleep of victims, those that slept longest first.
             */
            stopped: components["schemas"]["StoppedOut"][];
            footprint: components["schemas"]["FootprintOut"];
            /**
             * Room S
             * @description Until the victims have made room; they go at the same time.
             */
            room_s: number;
            /**
             * Load S
             * @description The load alone; null when there is none to come.
             */
            load_s: number | null;
            /**
             * Eta S
             * @description Until it could be READY, waiting and room included: as likely sooner as later.
             */
            eta_s: number | null;
            /**
             * At Latest S
             * @description The same, kept nine times of ten.
             */
            at_latest_s: number | null;
            /**
             * Again In S
             * @description When time alone may change a `wait`.
             */
            again_in_s: number | null;
        };
        /**
         * PriceOut
         * @description Of a million tokens.
         */
        PriceOut: {
            /** Prompt */
            prompt: number;
            /** Completion */
            completion: number;
            /**
             * Cached
             * @description Of the prompt, those in the prefix cache; null: as much as the others.
             */
            cached: number | null;
        };
        /** ProfileOut */
        ProfileOut: {
            /** Name */
            name: string;
            /** Active */
            active: boolean;
            /**
             * Pins
             * @description Null: pins are as the models say.
             */
            pins: string[] | null;
            /** Preloads */
            preloads: string[] | null;
            /**
             * Aliases
             * @description Name to model.
             */
            aliases: {
                [key: string]: string;
            };
            /** Schedule */
            schedule: string[];
            /**
             * Missing
             * @description Models that it names and that are not there.
             */
            missing: string[];
        };
        /** ProfilesOut */
        ProfilesOut: {
            /** Active */
            active: string | null;
            /**
             * Since
             * @description Unix time of the last switch; null when there never was one.
             */
            since: number | null;
            /**
             * By
             * @description Who or what switched last.
             */
            by: string;
            /** Profiles */
            profiles: components["schemas"]["ProfileOut"][];
        };
        /**
         * ProgressOut
         * @description How far a load is.
         */
        ProgressOut: {
            /** Phase */
            phase: string;
            /**
             * Percent
             * @description Of the phase; null where the engine gives none.
             */
            percent: number | null;
            /**
             * Elapsed S
             * @description Since the present state began.
             */
            elapsed_s: number;
            /**
             * Eta S
             * @description Until READY, from what loads took before; null when nothing is under way.
             */
            eta_s: number | null;
        };
        /** PruneIn */
        PruneIn: {
            /**
             * Repos
             * @description Only these; null means all that no declared model uses, and of the others what downloads left behind.
             */
            repos?: string[] | null;
        };
        /** PrunedOut */
        PrunedOut: {
            /**
             * Applied
             * @description False for a dry run.
             */
            applied: boolean;
            /** Removed */
            removed: components["schemas"]["RemovedOut"][];
            /**
             * Freed
             * @description Bytes.
             */
            freed: number;
            /**
             * Kept
             * @description What was asked for and stays.
             */
            kept: components["schemas"]["KeptOut"][];
        };
        /** PullIn */
        PullIn: {
            /**
             * Model
             * @description Id or alias of a declared model, or an id on the hub.
             */
            model: string;
            /**
             * Revision
             * @description A branch, a tag or a commit; null means what the model's arguments say, else `main`.
             */
            revision?: string | null;
        };
        /**
         * PullOut
         * @description A download. Sizes in bytes, moments as Unix seconds.
         */
        PullOut: {
            /** Id */
            id: string;
            /** Repo */
            repo: string;
            /** Revision */
            revision: string;
            state: components["schemas"]["PullState"];
            /**
             * File
             * @description The one that comes now.
             */
            file: string;
            /** Files */
            files: number;
            /**
             * Total
             * @description Null until the hub has said it.
             */
            total: number | null;
            /**
             * Done
             * @description What was there before included.
             */
            done: number;
            /**
             * Rate
             * @description Bytes a second.
             */
            rate: number | null;
            /** Eta S */
            eta_s: number | null;
            /**
             * Reason
             * @description Why it failed, or who cancelled it.
             */
            reason: string;
            /**
             * Path
             * @description The folder that an engine loads, once it is whole.
             */
            path: string;
            /** By */
            by: string;
            /** Asked At */
            asked_at: number;
            /** Ended At */
            ended_at: number | null;
        };
        /**
         * PullState
         * @enum {string}
         */
        PullState: "waiting" | "looking" | "downloading" | "done" | "failed" | "cancelled";
        /** QueueEntryOut */
        QueueEntryOut: {
            /** Ticket */
            ticket: string;
            /** Model */
            model: string;
            /** Key */
            key: string | null;
            /** Waited S */
            waited_s: number;
            /** Position */
            position: number;
            /** Deadline In S */
            deadline_in_s: number;
            /** Eta S */
            eta_s: number | null;
            /**
             * At Latest S
             * @description Kept nine times of ten.
             */
            at_latest_s: number | null;
            /** @description Why it waits, as a code; null until the scheduler has looked at it. */
            reason: components["schemas"]["Reason"] | null;
            /**
             * Why
             * @description The same as a sentence.
             */
            why: string;
        };
        /** QueueOut */
        QueueOut: {
            /** Length */
            length: number;
            /** Max Size */
            max_size: number;
            /** Oldest S */
            oldest_s: number;
            /** Entries */
            entries: components["schemas"]["QueueEntryOut"][];
        };
        /** QueueSummaryOut */
        QueueSummaryOut: {
            /** Length */
            length: number;
            /** Oldest S */
            oldest_s: number;
        };
        /**
         * ReadAheadOut
         * @description Reading weights into the page cache before they are asked for (`warm.read_ahead`). Bytes, since the server started.
         */
        ReadAheadOut: {
            /**
             * Budget
             * @description 0: it is off, and nothing is looked at.
             */
            budget: number;
            /**
             * Read
             * @description Read ahead.
             */
            read: number;
            /**
             * Starts
             * @description Of engines whose weights were looked at before.
             */
            starts: number;
            /**
             * Wanted
             * @description Weights that those starts read.
             */
            wanted: number;
            /**
             * Hits
             * @description What of `wanted` was in memory at the last look before the start, whoever put it there.
             */
            hits: number;
            /** Models */
            models: components["schemas"]["CachedWeightsOut"][];
        };
        /** ReadyOut */
        ReadyOut: {
            /** Ready */
            ready: boolean;
            /** Reasons */
            reasons: string[];
        };
        /**
         * Reason
         * @description Each code with what it means, in one sentence.
         * @enum {string}
         */
        Reason: "ready" | "wake" | "thaw" | "fits" | "idle" | "pays" | "max_wait" | "operator" | "slots" | "fairness" | "loading" | "stopping" | "dwell" | "cost" | "busy" | "rights" | "room" | "order" | "database" | "frozen" | "device" | "never" | "failed" | "request" | "preload" | "schedule" | "pinned" | "evicted" | "sleep_room" | "unused" | "lent" | "stranger" | "reload" | "unwanted" | "given_up" | "shutdown" | "crash" | "unhealthy" | "sleepless" | "stalled" | "deadline" | "probe" | "engine" | "adopted" | "boot" | "backoff" | "queue_full" | "queue_share" | "cut";
        /**
         * ReloadOut
         * @description What a reload changed, or would.
         */
        ReloadOut: {
            /**
             * Applied
             * @description False for a dry run.
             */
            applied: boolean;
            /**
             * File
             * @description The configuration file; null where there is none.
             */
            file: string | null;
            /**
             * Changes
             * @description Only the models that change; all others do not notice.
             */
            changes: components["schemas"]["ModelChangeOut"][];
            /**
             * At Restart
             * @description Settings that differ from those with which the server was started: they take effect when it is started again.
             */
            at_restart: string[];
            /** Warnings */
            warnings: string[];
        };
        /** RemovedOut */
        RemovedOut: {
            /** Repo */
            repo: string;
            /** Cache */
            cache: string;
            /** Freed */
            freed: number;
        };
        /** RepositoryOut */
        RepositoryOut: {
            /** Repo */
            repo: string;
            /** Cache */
            cache: string;
            /**
             * Size
             * @description Bytes on the disk, parts of files included.
             */
            size: number;
            /**
             * Partial
             * @description Of these, parts of files of downloads that were not finished.
             */
            partial: number;
            /** Changed At */
            changed_at: number;
            /**
             * Used By
             * @description Declared models that name it in any place.
             */
            used_by: string[];
            /** Downloading */
            downloading: boolean;
        };
        /**
         * RequestOut
         * @description A row of the request ledger.
         */
        RequestOut: {
            /** Id */
            id: string;
            /** Request Id */
            request_id: string;
            /** At */
            at: number;
            /** Route */
            route: string;
            /** Model */
            model: string | null;
            /** Asked */
            asked: string | null;
            /** Key */
            key: string | null;
            /** Stream */
            stream: boolean;
            outcome: components["schemas"]["Outcome"];
            /** Status */
            status: number;
            /** Error */
            error: string | null;
            /** Queued S */
            queued_s: number | null;
            /** Ttft S */
            ttft_s: number | null;
            /** Total S */
            total_s: number;
            /** Bytes In */
            bytes_in: number;
            /** Bytes Out */
            bytes_out: number;
            /** Prompt Tokens */
            prompt_tokens: number | null;
            /** Completion Tokens */
            completion_tokens: number | null;
            /** Cached Tokens */
            cached_tokens: number | null;
            /** Reasoning Tokens */
            reasoning_tokens: number | null;
            /** Generation */
            generation: number | null;
            /** Frozen S */
            frozen_s: number;
            /** Reason */
            reason: string | null;
            /** Retried */
            retried: boolean;
            /** Itl P50 S */
            itl_p50_s: number | null;
            /** Itl P95 S */
            itl_p95_s: number | null;
            /** Itl P99 S */
            itl_p99_s: number | null;
            /** Load S */
            load_s: number | null;
            /** Device S */
            device_s: number | null;
            /** Cost */
            cost: number | null;
        };
        /** RequestRuleOut */
        RequestRuleOut: {
            /** @description `default`: set where the client set nothing; `override`: set whatever it says; `limit`: the most that it may ask for. */
            kind: components["schemas"]["Kind"];
            /**
             * Path
             * @description The field, and where in it.
             */
            path: string[];
            /**
             * Value
             * @description Null: a default that was taken back, a field that is removed, or no limit.
             */
            value: unknown;
            /** @description `system` (`defaults`), `model`, or `alias` (the name, or LoRA adapter, itself). */
            source: components["schemas"]["Level"];
        };
        /** RequestsOut */
        RequestsOut: {
            /** Requests */
            requests: components["schemas"]["RequestOut"][];
            /**
             * Next
             * @description Give it as `before` for the next page; null when this was the last.
             */
            next: number | null;
        };
        /** ReservationOut */
        ReservationOut: {
            /** Model */
            model: string;
            /**
             * Bytes
             * @description What it may use, or was promised; of a leaver, what it holds.
             */
            bytes: number;
            /**
             * In Use
             * @description False while it is only promised: the load has not begun.
             */
            in_use: boolean;
            /** Leaving */
            leaving: boolean;
        };
        /** RetriedOut */
        RetriedOut: {
            /** Retried */
            retried: number;
        };
        /** RetryOut */
        RetryOut: {
            /** Backoff */
            backoff: number;
            /** Backoff Max */
            backoff_max: number;
            /** Max Failures */
            max_failures: number;
            /** Stable After */
            stable_after: number;
        };
        /**
         * Right
         * @description What a key's requests may cause, or what it may look at, beyond its scopes.
         * @enum {string}
         */
        Right: "load" | "evict" | "logs" | "capture";
        /** RotateIn */
        RotateIn: {
            /**
             * Overlap
             * @description For how long the secret of before is good as well: seconds, or text such as "1h"; at most 30 days.
             * @default 0
             */
            overlap: number | string;
        };
        /**
         * RunningOut
         * @description A request or realtime session that is not over. Times are seconds after its arrival; null for what it has not reached.
         */
        RunningOut: {
            /** Id */
            id: string;
            /** Request Id */
            request_id: string;
            /** At */
            at: number;
            /** Route */
            route: string;
            /** Model */
            model: string | null;
            /** Asked */
            asked: string | null;
            /** Key */
            key: string | null;
            /** Stream */
            stream: boolean;
            stage: components["schemas"]["vllm_mm__domain__running__Stage"];
            /** Queued S */
            queued_s: number | null;
            /** Load S */
            load_s: number | null;
            /** Ttft S */
            ttft_s: number | null;
            /** Total S */
            total_s: number;
            /** Frozen S */
            frozen_s: number;
            /** Frozen */
            frozen: boolean;
            /** Bytes In */
            bytes_in: number;
            /** Bytes Out */
            bytes_out: number;
            /** Generation */
            generation: number | null;
            /** Retried */
            retried: boolean;
            /** Ending */
            ending: boolean;
        };
        /**
         * ScheduleOut
         * @description Where a model is in its times of the week.
         */
        ScheduleOut: {
            /**
             * Open
             * @description One is open: it is to be ready.
             */
            open: boolean;
            /**
             * Keeps
             * @description It is kept ready for that, and not put to sleep or stopped for being idle. False also when somebody stopped it.
             */
            keeps: boolean;
            /**
             * Changes At
             * @description Unix time at which the open one ends, or the next one begins; null for one that never ends.
             */
            changes_at: number | null;
            /**
             * Text
             * @description The same for people, in the time zone of the schedule.
             */
            text: string;
        };
        /**
         * Scope
         * @description What a key may do. ADMIN implies OPERATE, OPERATE implies READ; INFER is the data plane.
         * @enum {string}
         */
        Scope: "infer" | "read" | "operate" | "admin";
        /** SeriesOut */
        SeriesOut: {
            /**
             * Since
             * @description Unix time; the points are `step` apart from there on.
             */
            since: number;
            /**
             * Step
             * @description Seconds that a point stands for: what was asked for, or more where only coarser rows are left.
             */
            step: number;
            /** At */
            at: number[];
            /** Lines */
            lines: components["schemas"]["LineOut"][];
            /** Marks */
            marks: components["schemas"]["MarkOut"][];
            /**
             * Marks Left Out
             * @description There were more.
             */
            marks_left_out: boolean;
        };
        /**
         * SessionOut
         * @description Who asks, and what they may do.
         */
        SessionOut: {
            /**
             * Key
             * @description The key's id.
             */
            key: string;
            /** Name */
            name: string;
            /**
             * Scopes
             * @description All that it may do, those included that follow from others.
             */
            scopes: components["schemas"]["Scope"][];
            /** Acts */
            acts: components["schemas"]["Right"][];
            by: components["schemas"]["By"];
            /**
             * Expires At
             * @description When they have to sign in again, or the key ends.
             */
            expires_at: number | null;
        };
        /** SettingOut */
        SettingOut: {
            /** Key */
            key: string;
            /**
             * Value
             * @description Without secrets.
             */
            value: unknown;
            /**
             * Source
             * @enum {string}
             */
            source: "flag" | "environment" | "file" | "default";
            /**
             * Where
             * @description File and line, or the variable; empty for a default.
             */
            where: string;
            /**
             * Live
             * @description A reload applies a change of it; else it takes effect when the server is started again.
             */
            live: boolean;
        };
        /**
         * SettingsOut
         * @description The configuration as it was read last.
         */
        SettingsOut: {
            /**
             * File
             * @description Null where there is none.
             */
            file: string | null;
            /**
             * Problem
             * @description Why the last reload was refused; null after a good one.
             */
            problem: string | null;
            /**
             * At Restart
             * @description Settings that were changed since the server was started, and are not in force before it is started again.
             */
            at_restart: string[];
            /**
             * Settings
             * @description All of the server; of models and profiles what is written somewhere.
             */
            settings: components["schemas"]["SettingOut"][];
        };
        /**
         * Shape
         * @description How it is told.
         * @enum {string}
         */
        Shape: "json" | "curl";
        /** SignInIn */
        SignInIn: {
            /**
             * Key
             * @description The secret of a key with the scope `read` at least. It is not kept.
             */
            key: string;
        };
        /** SignedOutOut */
        SignedOutOut: {
            /**
             * Sessions
             * @description How many ended.
             */
            sessions: number;
        };
        /**
         * SleepMode
         * @description Whether an engine is put to sleep.
         * @enum {string}
         */
        SleepMode: "auto" | "always" | "never";
        /** SleepOut */
        SleepOut: {
            mode: components["schemas"]["SleepMode"];
            /** Level */
            level: number;
            /** Keeps */
            keeps: number | null;
            /**
             * Why Not
             * @description Why it is not put to sleep; empty when it can be.
             */
            why_not: string;
        };
        /**
         * Source
         * @description Where a model was declared: the configuration file, or the admin API.
         * @enum {string}
         */
        Source: "file" | "api";
        /**
         * StandingOut
         * @description What a key with limits uses now.
         */
        StandingOut: {
            /**
             * Concurrency
             * @description Requests under way.
             */
            concurrency: number;
            /**
             * Requests Per Minute
             * @description Let in within the last 60 seconds.
             */
            requests_per_minute: number;
            /**
             * Tokens Per Minute
             * @description Used within the last 60 seconds, and reserved by what is under way.
             */
            tokens_per_minute: number;
            /** Tokens Per Day */
            tokens_per_day: number;
            /** Tokens Per Month */
            tokens_per_month: number;
            /** Device Seconds Per Day */
            device_seconds_per_day: number;
            /** Device Seconds Per Month */
            device_seconds_per_month: number;
        };
        /** StartLimitsOut */
        StartLimitsOut: {
            /** Stall */
            stall: number;
            /** Deadline */
            deadline: number;
            /** Probe */
            probe: number;
        };
        /** StartOut */
        StartOut: {
            /** Generation */
            generation: number;
            /** Started At */
            started_at: number;
            /** Ready At */
            ready_at: number | null;
            /** Phases */
            phases: {
                [key: string]: number;
            };
            /**
             * Outcome
             * @description `ready`, `failed`, `cancelled`; `adopted`: a controller took over what an earlier one had started, with no `ready_at`.
             */
            outcome: string;
            /** Reason */
            reason: string;
            /**
             * Launcher
             * @description How its process came into being: `warm` (forked from a zygote) or `local`; empty when there never was one.
             */
            launcher: string;
        };
        /**
         * State
         * @enum {string}
         */
        State: "stopped" | "starting" | "ready" | "draining" | "suspending" | "sleeping" | "waking" | "stopping" | "backoff" | "failed";
        /** StatusOut */
        StatusOut: {
            /** Version */
            version: string;
            /** Started At */
            started_at: number;
            /** Uptime S */
            uptime_s: number;
            /** Models */
            models: number;
            /**
             * States
             * @description Instances by state; models that never ran count as stopped.
             */
            states: {
                [key: string]: number;
            };
            /** In Flight */
            in_flight: number;
            queue: components["schemas"]["QueueSummaryOut"];
            /**
             * Forecasts
             * @description By when they were made: when somebody began to wait, and when the load was decided.
             */
            forecasts: {
                [key: string]: components["schemas"]["AccuracyOut"];
            };
            host_memory: components["schemas"]["HostMemoryOut"];
            /** Alerts */
            alerts: string[];
        };
        /**
         * StoppedOut
         * @description A sleeper that would be stopped so that a victim can sleep: the host's memory for sleep has no room for both. It may be the
         *     model itself, which is then started anew instead of woken.
         */
        StoppedOut: {
            /** Model */
            model: string;
            /**
             * Sleeps For
             * @description The victim that would sleep in its place.
             */
            sleeps_for: string;
            /** Host Bytes */
            host_bytes: number;
            /** Asleep S */
            asleep_s: number;
            /**
             * Return S
             * @description What it would take to have it back: a start, where it would have been a wake.
             */
            return_s: number;
            /**
             * Late
             * @description Only if the drain of that victim takes longer than `swap.drain_timeout`, so that it has to sleep with requests.
             */
            late: boolean;
        };
        /**
         * Task
         * @description What the engine is asked for; it decides which probe proves readiness.
         * @enum {string}
         */
        Task: "generate" | "embed" | "score" | "classify" | "transcribe" | "realtime";
        /** UnderWayOut */
        UnderWayOut: {
            /**
             * Requests
             * @description The oldest first.
             */
            requests: components["schemas"]["RunningOut"][];
            /**
             * Total
             * @description How many there are, of which these are the oldest.
             */
            total: number;
        };
        /**
         * UsageFormat
         * @enum {string}
         */
        UsageFormat: "json" | "csv";
        /** UsageOut */
        UsageOut: {
            /**
             * From
             * @description The beginning of the first hour that counts; null: everything that is kept.
             */
            from: string | null;
            /**
             * To
             * @description The end of the last hour that counts.
             */
            to: string | null;
            /** Group By */
            group_by: components["schemas"]["GroupBy"][];
            /** Rows */
            rows: components["schemas"]["UsageRowOut"][];
            /** @description The sum of the rows. */
            total: components["schemas"]["UsageRowOut"];
        };
        /**
         * UsageRowOut
         * @description Totals of one group. What was not asked for in `group_by` is null, and so is the key or model of requests that had none.
         */
        UsageRowOut: {
            /**
             * Key
             * @description The key's id.
             */
            key: string | null;
            /** Key Name */
            key_name: string | null;
            /** Model */
            model: string | null;
            /**
             * Day
             * @description `2026-01-31`, UTC.
             */
            day: string | null;
            /**
             * Hour
             * @description `2026-01-31T14:00Z`.
             */
            hour: string | null;
            /** Requests */
            requests: number;
            /**
             * Outcomes
             * @description How many ended how.
             */
            outcomes: {
                [key: string]: number;
            };
            /** Prompt Tokens */
            prompt_tokens: number;
            /**
             * Cached Tokens
             * @description Of the prompt's, those that were in the engine's prefix cache.
             */
            cached_tokens: number;
            /** Completion Tokens */
            completion_tokens: number;
            /**
             * Reasoning Tokens
             * @description Of the completion's.
             */
            reasoning_tokens: number;
            /**
             * Total S
             * @description Seconds from arrival to the end.
             */
            total_s: number;
            /**
             * Queued S
             * @description Of those, seconds until a request had its lease.
             */
            queued_s: number;
            /**
             * Load S
             * @description Of those, seconds until its engine was ready.
             */
            load_s: number;
            /**
             * Device S
             * @description Seconds for which requests had their leases (without those for which they stood still), times the devices of the model. Requests that run at the
             *     same time count whole, each.
             */
            device_s: number;
            /**
             * Cost
             * @description What the tokens cost by the models' prices at that time; null where no model had one.
             */
            cost: number | null;
            /**
             * Energy J
             * @description Joules that the devices took while models had memory on them, shared by that; null where the devices do not count them, and where keys are asked for.
             */
            energy_j: number | null;
        };
        /** VictimOut */
        VictimOut: {
            /** Model */
            model: string;
            state: components["schemas"]["State"];
            /** In Flight */
            in_flight: number;
            /** Device Bytes */
            device_bytes: {
                [key: string]: number;
            };
            /**
             * Bytes
             * @description The sum over devices.
             */
            bytes: number;
            /** @description Where its eviction would lead. */
            goal: components["schemas"]["Goal"];
            /**
             * Why
             * @description Why it would sleep, or be stopped instead.
             */
            why: string;
            /** @description What would become of requests that outlast its drain. */
            on_timeout: components["schemas"]["OnTimeout"];
            /**
             * Drain S
             * @description Until its last request ends, by what its drains took before.
             */
            drain_s: number;
            /**
             * Go S
             * @description From there until its memory is free.
             */
            go_s: number;
            /**
             * Return S
             * @description What it would take to have it back: a wake, or a start.
             */
            return_s: number;
            /**
             * Cache S
             * @description What its clients would wait longer then, altogether, because its prefix cache is lost, if they come.
             */
            cache_s: number;
        };
        /** WebhookOut */
        WebhookOut: {
            /** Name */
            name: string;
            /** Events */
            events: string[];
            /** Waiting */
            waiting: number;
            /** Delivered */
            delivered: number;
            /** Failed Tries */
            failed_tries: number;
            /**
             * Dead
             * @description Given up since the server began.
             */
            dead: number;
            /**
             * Problem
             * @description Why the latest try came to nothing; empty when it did not.
             */
            problem: string;
        };
        /** WeightsOut */
        WeightsOut: {
            /** Caches */
            caches: components["schemas"]["CacheOut"][];
            /**
             * Repositories
             * @description The largest first.
             */
            repositories: components["schemas"]["RepositoryOut"][];
        };
        /**
         * ZygoteOut
         * @description A process that has an engine's code imported, from which engines are forked.
         */
        ZygoteOut: {
            /** Key */
            key: string;
            /**
             * Python
             * @description The engine's Python.
             */
            python: string;
            /** Kind */
            kind: string;
            /**
             * State
             * @description `importing`, `ready`, or `failed`: given up, see `reason`.
             */
            state: string;
            /** Reason */
            reason: string;
            /** Pid */
            pid: number | null;
            /** Forks */
            forks: number;
            /** Idle S */
            idle_s: number;
            /** Imports S */
            imports_s: number;
            /**
             * Private
             * @description Bytes of memory that only it uses: what would be free without it. What it shares with engines is counted with them.
             */
            private: number;
            /**
             * Threads
             * @description Of the operating system.
             */
            threads: number;
            /**
             * Problems
             * @description Imports that failed; engines then import what they need themselves.
             */
            problems: string[];
        };
        /**
         * Stage
         * @enum {string}
         */
        vllm_mm__domain__device_leases__Stage: "asked" | "held" | "ended";
        /**
         * Stage
         * @description When a forecast was made that is compared with what came.
         * @enum {string}
         */
        vllm_mm__domain__estimates__Stage: "queued" | "decided";
        /**
         * Stage
         * @description How far it is.
         * @enum {string}
         */
        vllm_mm__domain__running__Stage: "arrives" | "waits" | "prompt" | "answers";
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    health: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HealthOut"];
                };
            };
        };
    };
    ready: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ReadyOut"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ReadyOut"];
                };
            };
        };
    };
    metrics: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    stream_events: {
        parameters: {
            query?: {
                /** @description Events since that number come first. */
                after?: number | null;
                /** @description Only those about this model. */
                model?: string | null;
                /** @description The latest events come first, this many. */
                tail?: number | null;
                /** @description False: end after what there is already. */
                follow?: boolean;
            };
            header?: {
                /** @description As `after`; browsers send it when they reconnect. */
                "last-event-id"?: string | null;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": {
                        /** Seq */
                        seq: number;
                        /** At */
                        at: number;
                        /** Kind */
                        kind: string;
                        /** Model */
                        model: string | null;
                        /** Cause */
                        cause: string;
                        /** Data */
                        data: {
                            [key: string]: unknown;
                        };
                    };
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    model_logs: {
        parameters: {
            query?: {
                /** @description Go on with what comes, over restarts too. */
                follow?: boolean;
                /** @description Lines to begin with. */
                tail?: number;
                /** @description Only lines with this in them, whatever the case of its letters. */
                search?: string;
                /** @description Only lines of this level (debug, info, warning, error, critical) or above. */
                level?: string | null;
                /** @description Lines since that number come first, instead of the tail. */
                after?: string;
                /** @description Only lines written since: Unix time, or how long ago, such as 10m. */
                since?: string | null;
            };
            header?: {
                /** @description As `after`; browsers send it when they reconnect. */
                "last-event-id"?: string | null;
            };
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Lines as text, or as server-sent events if the request accepts `text/event-stream`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain": string;
                    "text/event-stream": string;
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_launchers: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LaunchersOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_models: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelOut"][];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    create_model: {
        parameters: {
            query?: {
                /** @description Check everything and say what would change, and change nothing. */
                dry_run?: boolean;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /** @description The name that clients will use. */
                    id: string;
                    /**
                     * Request Defaults
                     * @description Request fields that are set where the client sets none; null sets none.
                     * @default {}
                     */
                    request_defaults?: {
                        [key: string]: unknown;
                    };
                    /**
                     * Request Overrides
                     * @description Request fields that are set whatever the client says; null removes one.
                     * @default {}
                     */
                    request_overrides?: {
                        [key: string]: unknown;
                    };
                    /**
                     * RequestLimitsConfig
                     * @default {
                     *       "max_tokens_if_missing": false
                     *     }
                     */
                    request_limits?: {
                        /**
                         * Max Tokens
                         * @description Tokens of an answer at most, whatever the API calls the field: a larger number becomes this one. Null is no limit.
                         */
                        max_tokens?: number | null;
                        /**
                         * Max Tokens If Missing
                         * @description Requests that name no number get `max_tokens` too.
                         * @default false
                         */
                        max_tokens_if_missing?: boolean;
                    };
                    /**
                     * Model
                     * @description What the engine loads: a Hugging Face id or a folder; the model's own id when null.
                     */
                    model?: string | null;
                    /**
                     * Engine
                     * @description `vllm`, `command` (any OpenAI-compatible server) or `sim` (the simulated engine); null means `defaults.engine`.
                     */
                    engine?: ("vllm" | "command" | "sim") | null;
                    /**
                     * Executable
                     * @description Program for `vllm` engines, such as one in another environment; null means `defaults.executable`.
                     */
                    executable?: string | null;
                    /**
                     * Launcher
                     * @description `auto`, `warm` or `local`; null means `defaults.launcher`.
                     */
                    launcher?: ("auto" | "warm" | "local") | null;
                    /**
                     * Args
                     * @description Arguments of `vllm serve`, without the dashes; `true` gives a bare flag, null removes one of `defaults.args`.
                     * @default {}
                     */
                    args?: {
                        [key: string]: unknown;
                    };
                    /**
                     * Env
                     * @description Environment variables of the engine.
                     * @default {}
                     */
                    env?: {
                        [key: string]: string;
                    };
                    /**
                     * Command
                     * @description For `command` engines: the argument list, with `{host}`, `{port}`, `{socket}` and `{model}` filled in, and
                     *     `{api_key}` (here and in `env`): a secret of the launch that this server sends with every request.
                     * @default []
                     */
                    command?: string[];
                    /**
                     * Sim
                     * @description For `sim` engines: the profile (weights, load_bandwidth, startup, tokens_per_second, kv_cache, ...); `vllm-mm sim --help`
                     *     has every key and its default.
                     * @default {}
                     */
                    sim?: {
                        [key: string]: unknown;
                    };
                    /**
                     * Task
                     * @description What the model does; it decides how readiness is proven.
                     * @default generate
                     * @enum {string}
                     */
                    task?: "generate" | "embed" | "score" | "classify" | "transcribe" | "realtime";
                    /**
                     * Aliases
                     * @description Other names that clients may use; `{name: ..., request_defaults: ...}` for one with rules of its own.
                     * @default []
                     */
                    aliases?: (string | {
                        /**
                         * Request Defaults
                         * @description Request fields that are set where the client sets none; null sets none.
                         * @default {}
                         */
                        request_defaults?: {
                            [key: string]: unknown;
                        };
                        /**
                         * Request Overrides
                         * @description Request fields that are set whatever the client says; null removes one.
                         * @default {}
                         */
                        request_overrides?: {
                            [key: string]: unknown;
                        };
                        /**
                         * RequestLimitsConfig
                         * @default {
                         *       "max_tokens_if_missing": false
                         *     }
                         */
                        request_limits?: {
                            /**
                             * Max Tokens
                             * @description Tokens of an answer at most, whatever the API calls the field: a larger number becomes this one. Null is no limit.
                             */
                            max_tokens?: number | null;
                            /**
                             * Max Tokens If Missing
                             * @description Requests that name no number get `max_tokens` too.
                             * @default false
                             */
                            max_tokens_if_missing?: boolean;
                        };
                        /**
                         * Name
                         * @description The name that clients may use.
                         */
                        name: string;
                    })[];
                    /**
                     * DeviceWishConfig
                     * @default {
                     *       "ids": []
                     *     }
                     */
                    devices?: {
                        /**
                         * Count
                         * @description How many devices the model is spread over (the tensor-parallel size); the number of `ids`, or 1, when null.
                         */
                        count?: number | null;
                        /**
                         * Ids
                         * @description Exactly these devices.
                         * @default []
                         */
                        ids?: string[];
                    };
                    /**
                     * Memory
                     * @description Bytes that it takes on each device; auto is estimated at first and then learned.
                     */
                    memory?: "auto" | null | number | string;
                    /**
                     * Kv Cache
                     * @description Bytes of KV cache that it is given on each device. auto: all that is left on a GPU that no other model wants, else enough
                     *     for 4 requests of the greatest length or 32,768 tokens, as far as there is room.
                     */
                    kv_cache?: "auto" | null | number | string;
                    /**
                     * Pinned
                     * @description Never swapped out for another model, never put to sleep or stopped for being idle.
                     * @default false
                     */
                    pinned?: boolean;
                    /**
                     * Preload
                     * @description Loaded when the server starts.
                     * @default false
                     */
                    preload?: boolean;
                    /**
                     * Schedule
                     * @description Times of the week in which it is loaded and not put to sleep or stopped for being idle, such as `mon-fri 09:00-18:00`,
                     *     `sat,sun 10:00-14:00` or `22:00-06:00`; in the time zone `timezone`.
                     * @default []
                     */
                    schedule?: string[];
                    /**
                     * Priority
                     * @description Higher is served first and swapped out last; from -1000 to 1000.
                     * @default 0
                     */
                    priority?: number;
                    /**
                     * Concurrency
                     * @description Requests that the instance is given at the same time; null means `defaults.concurrency`.
                     */
                    concurrency?: number | null;
                    /**
                     * Progress
                     * @description Comments for clients that wait for a stream of it; null means `defaults.progress`.
                     */
                    progress?: boolean | null;
                    /**
                     * Stream Usage
                     * @description Ask its engine for the token counts of streams; false for one that refuses `stream_options`, null means
                     *     `defaults.stream_usage`.
                     */
                    stream_usage?: boolean | null;
                    /**
                     * IdleConfig
                     * @default {
                     *       "sleep_after": 300,
                     *       "stop_after": 3600
                     *     }
                     */
                    idle?: {
                        /**
                         * Sleep After
                         * @description Time without a request after which a model is put to sleep; null means never.
                         * @default 300
                         */
                        sleep_after?: (number | string) | null;
                        /**
                         * Stop After
                         * @description Time without a request after which a model is stopped; null means never.
                         * @default 3600
                         */
                        stop_after?: (number | string) | null;
                    };
                    /**
                     * StartConfig
                     * @default {
                     *       "stall": 300,
                     *       "deadline": 1800,
                     *       "probe": 30
                     *     }
                     */
                    start?: {
                        /**
                         * Stall
                         * @description A start without a new log line, phase or percentage for this long is ended.
                         * @default 300
                         */
                        stall?: number | string;
                        /**
                         * Deadline
                         * @description The longest that a start may take, however lively it looks.
                         * @default 1800
                         */
                        deadline?: number | string;
                        /**
                         * Probe
                         * @description The longest that one health request or one-token probe may take.
                         * @default 30
                         */
                        probe?: number | string;
                    };
                    /**
                     * RetryConfig
                     * @default {
                     *       "backoff": 2,
                     *       "backoff_max": 60,
                     *       "max_failures": 4,
                     *       "stable_after": 60
                     *     }
                     */
                    retry?: {
                        /**
                         * Backoff
                         * @description Wait before the first retry of a failed start or after a crash; doubled each time.
                         * @default 2
                         */
                        backoff?: number | string;
                        /**
                         * Backoff Max
                         * @description The longest such wait.
                         * @default 60
                         */
                        backoff_max?: number | string;
                        /**
                         * Max Failures
                         * @description After this many failures in a row a model is left alone until somebody resets it.
                         * @default 4
                         */
                        max_failures?: number;
                        /**
                         * Stable After
                         * @description A model that was ready for this long starts counting failures from zero again.
                         * @default 60
                         */
                        stable_after?: number | string;
                    };
                    /**
                     * SleepConfig
                     * @description Sleep mode: weights in host memory or dropped, the process kept, most of the device's memory given back.
                     * @default {
                     *       "mode": "auto",
                     *       "level": 1
                     *     }
                     */
                    sleep?: {
                        /**
                         * Mode
                         * @description `auto`: where the engine is known to have one (`vllm-mm show` says why not). `always`: this engine sleeps, whatever
                         *     is known of it: it has vLLM's routes. `never`: it is stopped instead.
                         * @default auto
                         * @enum {string}
                         */
                        mode?: "auto" | "always" | "never";
                        /**
                         * Level
                         * @description 1 keeps the weights in host memory; 2 drops them and reads them again from disk at the wake, which needs no host memory
                         *     and has more known defects in vLLM.
                         * @default 1
                         */
                        level?: number;
                        /**
                         * Keeps
                         * @description Bytes that stay in use on each device during sleep; auto is estimated at first and then measured.
                         */
                        keeps?: "auto" | null | number | string;
                    };
                    /** @description What its tokens cost, for `vllm-mm usage`; null reckons nothing. */
                    price?: {
                        /**
                         * Prompt
                         * @description A million tokens of prompts.
                         * @default 0
                         */
                        prompt?: number;
                        /**
                         * Completion
                         * @description A million tokens of answers.
                         * @default 0
                         */
                        completion?: number;
                        /**
                         * Cached
                         * @description Those of the prompt that were in the prefix cache; null: as much as the others.
                         */
                        cached?: number | null;
                    } | null;
                    /**
                     * Lora
                     * @description LoRA adapters: served name to folder or Hugging Face id; `{path: ..., request_defaults: ...}` for one with rules of its own.
                     * @default {}
                     */
                    lora?: {
                        [key: string]: string | {
                            /**
                             * Request Defaults
                             * @description Request fields that are set where the client sets none; null sets none.
                             * @default {}
                             */
                            request_defaults?: {
                                [key: string]: unknown;
                            };
                            /**
                             * Request Overrides
                             * @description Request fields that are set whatever the client says; null removes one.
                             * @default {}
                             */
                            request_overrides?: {
                                [key: string]: unknown;
                            };
                            /**
                             * RequestLimitsConfig
                             * @default {
                             *       "max_tokens_if_missing": false
                             *     }
                             */
                            request_limits?: {
                                /**
                                 * Max Tokens
                                 * @description Tokens of an answer at most, whatever the API calls the field: a larger number becomes this one. Null is no limit.
                                 */
                                max_tokens?: number | null;
                                /**
                                 * Max Tokens If Missing
                                 * @description Requests that name no number get `max_tokens` too.
                                 * @default false
                                 */
                                max_tokens_if_missing?: boolean;
                            };
                            /**
                             * Path
                             * @description Folder or Hugging Face id of the adapter.
                             */
                            path: string;
                        };
                    };
                };
            };
        };
        responses: {
            /** @description What it would do, with `dry_run`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DryRunOut"];
                };
            };
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelOut"] | components["schemas"]["DryRunOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    copy_model: {
        parameters: {
            query?: {
                /** @description Check everything and say what would change, and change nothing. */
                dry_run?: boolean;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CopyIn"];
            };
        };
        responses: {
            /** @description What it would do, with `dry_run`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DryRunOut"];
                };
            };
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelOut"] | components["schemas"]["DryRunOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    start_model: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the settled state; without it the answer comes at once. */
                wait?: number | null;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The settled state, with `wait`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    restart_model: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the settled state; without it the answer comes at once. */
                wait?: number | null;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The settled state, with `wait`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    sleep_model: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the settled state; without it the answer comes at once. */
                wait?: number | null;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The settled state, with `wait`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    wake_model: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the settled state; without it the answer comes at once. */
                wait?: number | null;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The settled state, with `wait`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    drain_model: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the settled state; without it the answer comes at once. */
                wait?: number | null;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The settled state, with `wait`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    undrain_model: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the settled state; without it the answer comes at once. */
                wait?: number | null;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The settled state, with `wait`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    pin_model: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the settled state; without it the answer comes at once. */
                wait?: number | null;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The settled state, with `wait`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    unpin_model: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the settled state; without it the answer comes at once. */
                wait?: number | null;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The settled state, with `wait`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    reset_model: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the settled state; without it the answer comes at once. */
                wait?: number | null;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The settled state, with `wait`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    stop_model: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the settled state; without it the answer comes at once. */
                wait?: number | null;
                /** @description Cut what runs instead of letting it finish. */
                force?: boolean;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    model_history: {
        parameters: {
            query?: {
                limit?: number;
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HistoryOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    get_model: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    replace_model: {
        parameters: {
            query?: {
                /** @description Check everything and say what would change, and change nothing. */
                dry_run?: boolean;
            };
            header?: {
                /** @description The ETag of the declaration that was seen; 412 when it is another by now. */
                "if-match"?: string | null;
            };
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Request Defaults
                     * @description Request fields that are set where the client sets none; null sets none.
                     * @default {}
                     */
                    request_defaults?: {
                        [key: string]: unknown;
                    };
                    /**
                     * Request Overrides
                     * @description Request fields that are set whatever the client says; null removes one.
                     * @default {}
                     */
                    request_overrides?: {
                        [key: string]: unknown;
                    };
                    /**
                     * RequestLimitsConfig
                     * @default {
                     *       "max_tokens_if_missing": false
                     *     }
                     */
                    request_limits?: {
                        /**
                         * Max Tokens
                         * @description Tokens of an answer at most, whatever the API calls the field: a larger number becomes this one. Null is no limit.
                         */
                        max_tokens?: number | null;
                        /**
                         * Max Tokens If Missing
                         * @description Requests that name no number get `max_tokens` too.
                         * @default false
                         */
                        max_tokens_if_missing?: boolean;
                    };
                    /**
                     * Model
                     * @description What the engine loads: a Hugging Face id or a folder; the model's own id when null.
                     */
                    model?: string | null;
                    /**
                     * Engine
                     * @description `vllm`, `command` (any OpenAI-compatible server) or `sim` (the simulated engine); null means `defaults.engine`.
                     */
                    engine?: ("vllm" | "command" | "sim") | null;
                    /**
                     * Executable
                     * @description Program for `vllm` engines, such as one in another environment; null means `defaults.executable`.
                     */
                    executable?: string | null;
                    /**
                     * Launcher
                     * @description `auto`, `warm` or `local`; null means `defaults.launcher`.
                     */
                    launcher?: ("auto" | "warm" | "local") | null;
                    /**
                     * Args
                     * @description Arguments of `vllm serve`, without the dashes; `true` gives a bare flag, null removes one of `defaults.args`.
                     * @default {}
                     */
                    args?: {
                        [key: string]: unknown;
                    };
                    /**
                     * Env
                     * @description Environment variables of the engine.
                     * @default {}
                     */
                    env?: {
                        [key: string]: string;
                    };
                    /**
                     * Command
                     * @description For `command` engines: the argument list, with `{host}`, `{port}`, `{socket}` and `{model}` filled in, and
                     *     `{api_key}` (here and in `env`): a secret of the launch that this server sends with every request.
                     * @default []
                     */
                    command?: string[];
                    /**
                     * Sim
                     * @description For `sim` engines: the profile (weights, load_bandwidth, startup, tokens_per_second, kv_cache, ...); `vllm-mm sim --help`
                     *     has every key and its default.
                     * @default {}
                     */
                    sim?: {
                        [key: string]: unknown;
                    };
                    /**
                     * Task
                     * @description What the model does; it decides how readiness is proven.
                     * @default generate
                     * @enum {string}
                     */
                    task?: "generate" | "embed" | "score" | "classify" | "transcribe" | "realtime";
                    /**
                     * Aliases
                     * @description Other names that clients may use; `{name: ..., request_defaults: ...}` for one with rules of its own.
                     * @default []
                     */
                    aliases?: (string | {
                        /**
                         * Request Defaults
                         * @description Request fields that are set where the client sets none; null sets none.
                         * @default {}
                         */
                        request_defaults?: {
                            [key: string]: unknown;
                        };
                        /**
                         * Request Overrides
                         * @description Request fields that are set whatever the client says; null removes one.
                         * @default {}
                         */
                        request_overrides?: {
                            [key: string]: unknown;
                        };
                        /**
                         * RequestLimitsConfig
                         * @default {
                         *       "max_tokens_if_missing": false
                         *     }
                         */
                        request_limits?: {
                            /**
                             * Max Tokens
                             * @description Tokens of an answer at most, whatever the API calls the field: a larger number becomes this one. Null is no limit.
                             */
                            max_tokens?: number | null;
                            /**
                             * Max Tokens If Missing
                             * @description Requests that name no number get `max_tokens` too.
                             * @default false
                             */
                            max_tokens_if_missing?: boolean;
                        };
                        /**
                         * Name
                         * @description The name that clients may use.
                         */
                        name: string;
                    })[];
                    /**
                     * DeviceWishConfig
                     * @default {
                     *       "ids": []
                     *     }
                     */
                    devices?: {
                        /**
                         * Count
                         * @description How many devices the model is spread over (the tensor-parallel size); the number of `ids`, or 1, when null.
                         */
                        count?: number | null;
                        /**
                         * Ids
                         * @description Exactly these devices.
                         * @default []
                         */
                        ids?: string[];
                    };
                    /**
                     * Memory
                     * @description Bytes that it takes on each device; auto is estimated at first and then learned.
                     */
                    memory?: "auto" | null | number | string;
                    /**
                     * Kv Cache
                     * @description Bytes of KV cache that it is given on each device. auto: all that is left on a GPU that no other model wants, else enough
                     *     for 4 requests of the greatest length or 32,768 tokens, as far as there is room.
                     */
                    kv_cache?: "auto" | null | number | string;
                    /**
                     * Pinned
                     * @description Never swapped out for another model, never put to sleep or stopped for being idle.
                     * @default false
                     */
                    pinned?: boolean;
                    /**
                     * Preload
                     * @description Loaded when the server starts.
                     * @default false
                     */
                    preload?: boolean;
                    /**
                     * Schedule
                     * @description Times of the week in which it is loaded and not put to sleep or stopped for being idle, such as `mon-fri 09:00-18:00`,
                     *     `sat,sun 10:00-14:00` or `22:00-06:00`; in the time zone `timezone`.
                     * @default []
                     */
                    schedule?: string[];
                    /**
                     * Priority
                     * @description Higher is served first and swapped out last; from -1000 to 1000.
                     * @default 0
                     */
                    priority?: number;
                    /**
                     * Concurrency
                     * @description Requests that the instance is given at the same time; null means `defaults.concurrency`.
                     */
                    concurrency?: number | null;
                    /**
                     * Progress
                     * @description Comments for clients that wait for a stream of it; null means `defaults.progress`.
                     */
                    progress?: boolean | null;
                    /**
                     * Stream Usage
                     * @description Ask its engine for the token counts of streams; false for one that refuses `stream_options`, null means
                     *     `defaults.stream_usage`.
                     */
                    stream_usage?: boolean | null;
                    /**
                     * IdleConfig
                     * @default {
                     *       "sleep_after": 300,
                     *       "stop_after": 3600
                     *     }
                     */
                    idle?: {
                        /**
                         * Sleep After
                         * @description Time without a request after which a model is put to sleep; null means never.
                         * @default 300
                         */
                        sleep_after?: (number | string) | null;
                        /**
                         * Stop After
                         * @description Time without a request after which a model is stopped; null means never.
                         * @default 3600
                         */
                        stop_after?: (number | string) | null;
                    };
                    /**
                     * StartConfig
                     * @default {
                     *       "stall": 300,
                     *       "deadline": 1800,
                     *       "probe": 30
                     *     }
                     */
                    start?: {
                        /**
                         * Stall
                         * @description A start without a new log line, phase or percentage for this long is ended.
                         * @default 300
                         */
                        stall?: number | string;
                        /**
                         * Deadline
                         * @description The longest that a start may take, however lively it looks.
                         * @default 1800
                         */
                        deadline?: number | string;
                        /**
                         * Probe
                         * @description The longest that one health request or one-token probe may take.
                         * @default 30
                         */
                        probe?: number | string;
                    };
                    /**
                     * RetryConfig
                     * @default {
                     *       "backoff": 2,
                     *       "backoff_max": 60,
                     *       "max_failures": 4,
                     *       "stable_after": 60
                     *     }
                     */
                    retry?: {
                        /**
                         * Backoff
                         * @description Wait before the first retry of a failed start or after a crash; doubled each time.
                         * @default 2
                         */
                        backoff?: number | string;
                        /**
                         * Backoff Max
                         * @description The longest such wait.
                         * @default 60
                         */
                        backoff_max?: number | string;
                        /**
                         * Max Failures
                         * @description After this many failures in a row a model is left alone until somebody resets it.
                         * @default 4
                         */
                        max_failures?: number;
                        /**
                         * Stable After
                         * @description A model that was ready for this long starts counting failures from zero again.
                         * @default 60
                         */
                        stable_after?: number | string;
                    };
                    /**
                     * SleepConfig
                     * @description Sleep mode: weights in host memory or dropped, the process kept, most of the device's memory given back.
                     * @default {
                     *       "mode": "auto",
                     *       "level": 1
                     *     }
                     */
                    sleep?: {
                        /**
                         * Mode
                         * @description `auto`: where the engine is known to have one (`vllm-mm show` says why not). `always`: this engine sleeps, whatever
                         *     is known of it: it has vLLM's routes. `never`: it is stopped instead.
                         * @default auto
                         * @enum {string}
                         */
                        mode?: "auto" | "always" | "never";
                        /**
                         * Level
                         * @description 1 keeps the weights in host memory; 2 drops them and reads them again from disk at the wake, which needs no host memory
                         *     and has more known defects in vLLM.
                         * @default 1
                         */
                        level?: number;
                        /**
                         * Keeps
                         * @description Bytes that stay in use on each device during sleep; auto is estimated at first and then measured.
                         */
                        keeps?: "auto" | null | number | string;
                    };
                    /** @description What its tokens cost, for `vllm-mm usage`; null reckons nothing. */
                    price?: {
                        /**
                         * Prompt
                         * @description A million tokens of prompts.
                         * @default 0
                         */
                        prompt?: number;
                        /**
                         * Completion
                         * @description A million tokens of answers.
                         * @default 0
                         */
                        completion?: number;
                        /**
                         * Cached
                         * @description Those of the prompt that were in the prefix cache; null: as much as the others.
                         */
                        cached?: number | null;
                    } | null;
                    /**
                     * Lora
                     * @description LoRA adapters: served name to folder or Hugging Face id; `{path: ..., request_defaults: ...}` for one with rules of its own.
                     * @default {}
                     */
                    lora?: {
                        [key: string]: string | {
                            /**
                             * Request Defaults
                             * @description Request fields that are set where the client sets none; null sets none.
                             * @default {}
                             */
                            request_defaults?: {
                                [key: string]: unknown;
                            };
                            /**
                             * Request Overrides
                             * @description Request fields that are set whatever the client says; null removes one.
                             * @default {}
                             */
                            request_overrides?: {
                                [key: string]: unknown;
                            };
                            /**
                             * RequestLimitsConfig
                             * @default {
                             *       "max_tokens_if_missing": false
                             *     }
                             */
                            request_limits?: {
                                /**
                                 * Max Tokens
                                 * @description Tokens of an answer at most, whatever the API calls the field: a larger number becomes this one. Null is no limit.
                                 */
                                max_tokens?: number | null;
                                /**
                                 * Max Tokens If Missing
                                 * @description Requests that name no number get `max_tokens` too.
                                 * @default false
                                 */
                                max_tokens_if_missing?: boolean;
                            };
                            /**
                             * Path
                             * @description Folder or Hugging Face id of the adapter.
                             */
                            path: string;
                        };
                    };
                };
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelOut"] | components["schemas"]["DryRunOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    delete_model: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the settled state; without it the answer comes at once. */
                wait?: number | null;
                /** @description Check everything and say what would change, and change nothing. */
                dry_run?: boolean;
            };
            header?: {
                /** @description The ETag of the declaration that was seen; 412 when it is another by now. */
                "if-match"?: string | null;
            };
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DeletedOut"] | components["schemas"]["DryRunOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    change_model: {
        parameters: {
            query?: {
                /** @description Check everything and say what would change, and change nothing. */
                dry_run?: boolean;
            };
            header?: {
                /** @description The ETag of the declaration that was seen; 412 when it is another by now. */
                "if-match"?: string | null;
            };
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * Request Defaults
                     * @description Request fields that are set where the client sets none; null sets none.
                     * @default {}
                     */
                    request_defaults?: {
                        [key: string]: unknown;
                    };
                    /**
                     * Request Overrides
                     * @description Request fields that are set whatever the client says; null removes one.
                     * @default {}
                     */
                    request_overrides?: {
                        [key: string]: unknown;
                    };
                    /**
                     * RequestLimitsConfig
                     * @default {
                     *       "max_tokens_if_missing": false
                     *     }
                     */
                    request_limits?: {
                        /**
                         * Max Tokens
                         * @description Tokens of an answer at most, whatever the API calls the field: a larger number becomes this one. Null is no limit.
                         */
                        max_tokens?: number | null;
                        /**
                         * Max Tokens If Missing
                         * @description Requests that name no number get `max_tokens` too.
                         * @default false
                         */
                        max_tokens_if_missing?: boolean;
                    };
                    /**
                     * Model
                     * @description What the engine loads: a Hugging Face id or a folder; the model's own id when null.
                     */
                    model?: string | null;
                    /**
                     * Engine
                     * @description `vllm`, `command` (any OpenAI-compatible server) or `sim` (the simulated engine); null means `defaults.engine`.
                     */
                    engine?: ("vllm" | "command" | "sim") | null;
                    /**
                     * Executable
                     * @description Program for `vllm` engines, such as one in another environment; null means `defaults.executable`.
                     */
                    executable?: string | null;
                    /**
                     * Launcher
                     * @description `auto`, `warm` or `local`; null means `defaults.launcher`.
                     */
                    launcher?: ("auto" | "warm" | "local") | null;
                    /**
                     * Args
                     * @description Arguments of `vllm serve`, without the dashes; `true` gives a bare flag, null removes one of `defaults.args`.
                     * @default {}
                     */
                    args?: {
                        [key: string]: unknown;
                    };
                    /**
                     * Env
                     * @description Environment variables of the engine.
                     * @default {}
                     */
                    env?: {
                        [key: string]: string;
                    };
                    /**
                     * Command
                     * @description For `command` engines: the argument list, with `{host}`, `{port}`, `{socket}` and `{model}` filled in, and
                     *     `{api_key}` (here and in `env`): a secret of the launch that this server sends with every request.
                     * @default []
                     */
                    command?: string[];
                    /**
                     * Sim
                     * @description For `sim` engines: the profile (weights, load_bandwidth, startup, tokens_per_second, kv_cache, ...); `vllm-mm sim --help`
                     *     has every key and its default.
                     * @default {}
                     */
                    sim?: {
                        [key: string]: unknown;
                    };
                    /**
                     * Task
                     * @description What the model does; it decides how readiness is proven.
                     * @default generate
                     * @enum {string}
                     */
                    task?: "generate" | "embed" | "score" | "classify" | "transcribe" | "realtime";
                    /**
                     * Aliases
                     * @description Other names that clients may use; `{name: ..., request_defaults: ...}` for one with rules of its own.
                     * @default []
                     */
                    aliases?: (string | {
                        /**
                         * Request Defaults
                         * @description Request fields that are set where the client sets none; null sets none.
                         * @default {}
                         */
                        request_defaults?: {
                            [key: string]: unknown;
                        };
                        /**
                         * Request Overrides
                         * @description Request fields that are set whatever the client says; null removes one.
                         * @default {}
                         */
                        request_overrides?: {
                            [key: string]: unknown;
                        };
                        /**
                         * RequestLimitsConfig
                         * @default {
                         *       "max_tokens_if_missing": false
                         *     }
                         */
                        request_limits?: {
                            /**
                             * Max Tokens
                             * @description Tokens of an answer at most, whatever the API calls the field: a larger number becomes this one. Null is no limit.
                             */
                            max_tokens?: number | null;
                            /**
                             * Max Tokens If Missing
                             * @description Requests that name no number get `max_tokens` too.
                             * @default false
                             */
                            max_tokens_if_missing?: boolean;
                        };
                        /**
                         * Name
                         * @description The name that clients may use.
                         */
                        name: string;
                    })[];
                    /**
                     * DeviceWishConfig
                     * @default {
                     *       "ids": []
                     *     }
                     */
                    devices?: {
                        /**
                         * Count
                         * @description How many devices the model is spread over (the tensor-parallel size); the number of `ids`, or 1, when null.
                         */
                        count?: number | null;
                        /**
                         * Ids
                         * @description Exactly these devices.
                         * @default []
                         */
                        ids?: string[];
                    };
                    /**
                     * Memory
                     * @description Bytes that it takes on each device; auto is estimated at first and then learned.
                     */
                    memory?: "auto" | null | number | string;
                    /**
                     * Kv Cache
                     * @description Bytes of KV cache that it is given on each device. auto: all that is left on a GPU that no other model wants, else enough
                     *     for 4 requests of the greatest length or 32,768 tokens, as far as there is room.
                     */
                    kv_cache?: "auto" | null | number | string;
                    /**
                     * Pinned
                     * @description Never swapped out for another model, never put to sleep or stopped for being idle.
                     * @default false
                     */
                    pinned?: boolean;
                    /**
                     * Preload
                     * @description Loaded when the server starts.
                     * @default false
                     */
                    preload?: boolean;
                    /**
                     * Schedule
                     * @description Times of the week in which it is loaded and not put to sleep or stopped for being idle, such as `mon-fri 09:00-18:00`,
                     *     `sat,sun 10:00-14:00` or `22:00-06:00`; in the time zone `timezone`.
                     * @default []
                     */
                    schedule?: string[];
                    /**
                     * Priority
                     * @description Higher is served first and swapped out last; from -1000 to 1000.
                     * @default 0
                     */
                    priority?: number;
                    /**
                     * Concurrency
                     * @description Requests that the instance is given at the same time; null means `defaults.concurrency`.
                     */
                    concurrency?: number | null;
                    /**
                     * Progress
                     * @description Comments for clients that wait for a stream of it; null means `defaults.progress`.
                     */
                    progress?: boolean | null;
                    /**
                     * Stream Usage
                     * @description Ask its engine for the token counts of streams; false for one that refuses `stream_options`, null means
                     *     `defaults.stream_usage`.
                     */
                    stream_usage?: boolean | null;
                    /**
                     * IdleConfig
                     * @default {
                     *       "sleep_after": 300,
                     *       "stop_after": 3600
                     *     }
                     */
                    idle?: {
                        /**
                         * Sleep After
                         * @description Time without a request after which a model is put to sleep; null means never.
                         * @default 300
                         */
                        sleep_after?: (number | string) | null;
                        /**
                         * Stop After
                         * @description Time without a request after which a model is stopped; null means never.
                         * @default 3600
                         */
                        stop_after?: (number | string) | null;
                    };
                    /**
                     * StartConfig
                     * @default {
                     *       "stall": 300,
                     *       "deadline": 1800,
                     *       "probe": 30
                     *     }
                     */
                    start?: {
                        /**
                         * Stall
                         * @description A start without a new log line, phase or percentage for this long is ended.
                         * @default 300
                         */
                        stall?: number | string;
                        /**
                         * Deadline
                         * @description The longest that a start may take, however lively it looks.
                         * @default 1800
                         */
                        deadline?: number | string;
                        /**
                         * Probe
                         * @description The longest that one health request or one-token probe may take.
                         * @default 30
                         */
                        probe?: number | string;
                    };
                    /**
                     * RetryConfig
                     * @default {
                     *       "backoff": 2,
                     *       "backoff_max": 60,
                     *       "max_failures": 4,
                     *       "stable_after": 60
                     *     }
                     */
                    retry?: {
                        /**
                         * Backoff
                         * @description Wait before the first retry of a failed start or after a crash; doubled each time.
                         * @default 2
                         */
                        backoff?: number | string;
                        /**
                         * Backoff Max
                         * @description The longest such wait.
                         * @default 60
                         */
                        backoff_max?: number | string;
                        /**
                         * Max Failures
                         * @description After this many failures in a row a model is left alone until somebody resets it.
                         * @default 4
                         */
                        max_failures?: number;
                        /**
                         * Stable After
                         * @description A model that was ready for this long starts counting failures from zero again.
                         * @default 60
                         */
                        stable_after?: number | string;
                    };
                    /**
                     * SleepConfig
                     * @description Sleep mode: weights in host memory or dropped, the process kept, most of the device's memory given back.
                     * @default {
                     *       "mode": "auto",
                     *       "level": 1
                     *     }
                     */
                    sleep?: {
                        /**
                         * Mode
                         * @description `auto`: where the engine is known to have one (`vllm-mm show` says why not). `always`: this engine sleeps, whatever
                         *     is known of it: it has vLLM's routes. `never`: it is stopped instead.
                         * @default auto
                         * @enum {string}
                         */
                        mode?: "auto" | "always" | "never";
                        /**
                         * Level
                         * @description 1 keeps the weights in host memory; 2 drops them and reads them again from disk at the wake, which needs no host memory
                         *     and has more known defects in vLLM.
                         * @default 1
                         */
                        level?: number;
                        /**
                         * Keeps
                         * @description Bytes that stay in use on each device during sleep; auto is estimated at first and then measured.
                         */
                        keeps?: "auto" | null | number | string;
                    };
                    /** @description What its tokens cost, for `vllm-mm usage`; null reckons nothing. */
                    price?: {
                        /**
                         * Prompt
                         * @description A million tokens of prompts.
                         * @default 0
                         */
                        prompt?: number;
                        /**
                         * Completion
                         * @description A million tokens of answers.
                         * @default 0
                         */
                        completion?: number;
                        /**
                         * Cached
                         * @description Those of the prompt that were in the prefix cache; null: as much as the others.
                         */
                        cached?: number | null;
                    } | null;
                    /**
                     * Lora
                     * @description LoRA adapters: served name to folder or Hugging Face id; `{path: ..., request_defaults: ...}` for one with rules of its own.
                     * @default {}
                     */
                    lora?: {
                        [key: string]: string | {
                            /**
                             * Request Defaults
                             * @description Request fields that are set where the client sets none; null sets none.
                             * @default {}
                             */
                            request_defaults?: {
                                [key: string]: unknown;
                            };
                            /**
                             * Request Overrides
                             * @description Request fields that are set whatever the client says; null removes one.
                             * @default {}
                             */
                            request_overrides?: {
                                [key: string]: unknown;
                            };
                            /**
                             * RequestLimitsConfig
                             * @default {
                             *       "max_tokens_if_missing": false
                             *     }
                             */
                            request_limits?: {
                                /**
                                 * Max Tokens
                                 * @description Tokens of an answer at most, whatever the API calls the field: a larger number becomes this one. Null is no limit.
                                 */
                                max_tokens?: number | null;
                                /**
                                 * Max Tokens If Missing
                                 * @description Requests that name no number get `max_tokens` too.
                                 * @default false
                                 */
                                max_tokens_if_missing?: boolean;
                            };
                            /**
                             * Path
                             * @description Folder or Hugging Face id of the adapter.
                             */
                            path: string;
                        };
                    };
                };
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ModelOut"] | components["schemas"]["DryRunOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_device_leases: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DeviceLeaseOut"][];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    get_device_lease: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                lease: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DeviceLeaseOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    end_device_lease: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                lease: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DeviceLeaseOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    ask_for_device_lease: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the settled state; without it the answer comes at once. */
                wait?: number | null;
            };
            header?: never;
            path: {
                device: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["DeviceLeaseIn"];
            };
        };
        responses: {
            /** @description The memory is free, with `wait`. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DeviceLeaseOut"];
                };
            };
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DeviceLeaseOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_instances: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InstanceOut"][];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_devices: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DeviceOut"][];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    get_queue: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QueueOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    get_plan: {
        parameters: {
            query: {
                /** @description Id or alias. */
                model: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PlanOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    get_status: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StatusOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_running: {
        parameters: {
            query?: {
                /** @description So many of the oldest. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["UnderWayOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_requests: {
        parameters: {
            query?: {
                limit?: number;
                /** @description `next` of the page before. */
                before?: number | null;
                model?: string | null;
                /** @description The key's id. */
                key?: string | null;
                outcome?: components["schemas"]["Outcome"] | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RequestsOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    get_capture: {
        parameters: {
            query?: {
                /** @description `curl`: a command that sends the request again, with the key in VLLM_MM_TOKEN. */
                as?: components["schemas"]["Shape"];
            };
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CaptureOut"];
                    "text/plain": string;
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_keys: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["KeyOut"][];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    create_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["KeyIn"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NewKeyOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    export_keys: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["KeysFile"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    import_keys: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["KeysFile"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ImportedOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    get_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["KeyOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    revoke_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["KeyOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    change_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["KeyPatch"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["KeyOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    rotate_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["RotateIn"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NewKeyOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_audit: {
        parameters: {
            query?: {
                /** @description Of a page; exports are whole. */
                limit?: number;
                /** @description `next` of the page before. */
                before?: number | null;
                /** @description Only acts of that key, by id or name. */
                actor?: string | null;
                /** @description Only those, such as `start_model`. */
                act?: string | null;
                /** @description Only what was done to such things: `models`, `keys`, ... */
                kind?: string | null;
                /** @description Only what was done to that one, by id. */
                object?: string | null;
                /** @description From that moment on; Unix seconds. */
                since?: number | null;
                /** @description Before that moment; Unix seconds. */
                until?: number | null;
                format?: components["schemas"]["AuditFormat"];
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AuditOut"];
                    "text/csv": string;
                    "application/jsonl": string;
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    cancel_request: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CancelledOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    replay_request: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    get_usage: {
        parameters: {
            query?: {
                /** @description Any of key, model, day and hour, with commas between them; empty: one sum of all. */
                group_by?: string;
                /** @description From that hour on: `2026-01-31`, `2026-01-31T14:00Z`, or Unix seconds. */
                from?: string | null;
                /** @description Before that moment; a part of an hour counts whole. */
                to?: string | null;
                /** @description Only that key, by id or name. */
                key?: string | null;
                /** @description Only that model, by id. */
                model?: string | null;
                format?: components["schemas"]["UsageFormat"];
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["UsageOut"];
                    "text/csv": string;
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    get_series: {
        parameters: {
            query: {
                /** @description Any of tokens, requests, ttft_p50, ttft_p95, itl_p50, itl_p95, queued, oldest, in_flight, kv, memory, foreign, free, with commas between them. */
                metric: string;
                /** @description Only that model, by id. */
                model?: string | null;
                /** @description Only that device. */
                device?: string | null;
                /** @description From then on: a time, Unix seconds, or how long before `to`, such as 6h; an hour. */
                from?: string | null;
                /** @description Before that moment; now. */
                to?: string | null;
                /** @description Seconds between two points; what gives about 400. */
                step?: number | null;
                /** @description Also what was loaded, slept, stopped or failed in that time. */
                marks?: boolean;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SeriesOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_webhooks: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WebhookOut"][];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_dead_letters: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DeadLetterOut"][];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    retry_dead_letters: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RetriedOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    retry_dead_letter: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RetriedOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    get_session: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    sign_in: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SignInIn"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    sign_out: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SignedOutOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    sign_out_everywhere: {
        parameters: {
            query?: {
                /** @description Those of all keys; needs the scope `admin`. */
                everybody?: boolean;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SignedOutOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    reload_config: {
        parameters: {
            query?: {
                /** @description Check everything and say what would change, and change nothing. */
                dry_run?: boolean;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ReloadOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    get_settings: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SettingsOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_profiles: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ProfilesOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    deactivate_profile: {
        parameters: {
            query?: {
                /** @description Check everything and say what would change, and change nothing. */
                dry_run?: boolean;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ActivatedOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    activate_profile: {
        parameters: {
            query?: {
                /** @description Check everything and say what would change, and change nothing. */
                dry_run?: boolean;
            };
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ActivatedOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_pulls: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PullOut"][];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    start_pull: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PullIn"];
            };
        };
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PullOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    get_pull: {
        parameters: {
            query?: {
                /** @description Seconds to wait for its end. */
                wait?: number;
            };
            header?: never;
            path: {
                pull: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PullOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    cancel_pull: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                pull: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PullOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    list_weights: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WeightsOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
    prune_weights: {
        parameters: {
            query?: {
                /** @description Check everything and say what would change, and change nothing. */
                dry_run?: boolean;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PruneIn"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PrunedOut"];
                };
            };
            /** @description No key, or one that nobody issued. */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description A key without the scope. */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description There is no such thing. */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description Contradicts what is going on; the message says what that is. */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
            /** @description The request is wrong; `param` says where. */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ErrorOut"];
                };
            };
        };
    };
}
